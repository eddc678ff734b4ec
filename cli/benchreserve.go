package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/benchmarks/reserve"
	"github.com/lull-project/lull/size"
)

// benchReserveCommand compares the priced reserve with fixed ones on a trace.
func benchReserveCommand() *cobra.Command {
	cfg := reserve.DefaultConfig()
	perToken := cfg.PerToken.String()
	c := &cobra.Command{
		Use:   "reserve",
		Short: "Cost of the priced reserve on a trace, beside a grid of fixed reserves and idle times, in virtual time",
		Long: `Replays a request trace around the real core in virtual time: an engine that queues what its bound has
no room for, and a trainer whose speed saturates with memory and whose handovers take times drawn from a
law with a tail. It runs the priced reserve at 10, 100 and 1000 samples a miss and a grid of fixed policies,
and prints for each price: what priced cost (samples lost + misses x price), the samples that its reserve
displaced and the misses that its books expected without one; the fixed reserve that was best with the
model's own idle time, and the best point of the whole grid, chosen after the fact; how many of the grid's
points priced beats, and the worst. The same flags give the same figures. docs/RESERVE.md has the runs
that the project shows.`,
		Example: "  lull bench reserve\n  lull bench reserve --trace AzureLLMInferenceTrace_code.csv --draws 8 --out reserve.json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			b, err := size.Parse(perToken)
			if err != nil {
				return usageError{fmt.Errorf("bench reserve: --per-token: %w", err)}
			}
			cfg.PerToken = b
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			cfg.Command = strings.TrimSpace(c.CommandPath() + " " + strings.Join(args, " "))
			_, err = reserve.Run(c.Context(), c.OutOrStdout(), cfg)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Trace, "trace", "", "`file` or folder to replay; empty is the slice that comes with Lull")
	f.DurationVar(&cfg.Part.From, "from", 0, "begin this `long` into the trace")
	f.DurationVar(&cfg.Part.For, "for", 0, "replay this `long`; 0 is to the end")
	f.Float64Var(&cfg.Part.Rate, "rate", 1, "multiply the arrival rate by this `factor`")
	f.Uint64Var(&cfg.Part.Seed, "seed", cfg.Part.Seed, "`seed` of handover times and of what the format leaves open")
	f.StringVar(&perToken, "per-token", perToken, "KV `bytes` of one token")
	f.DurationVar(&cfg.Slack, "slack", cfg.Slack, "`time` that a request may wait for memory")
	f.IntVar(&cfg.Draws, "draws", cfg.Draws, "run each policy so many `times`, with other handover times")
	f.Float64Var(&cfg.Handovers.Slow, "slow", cfg.Handovers.Slow, "`share` of handovers that take 0.1 to 1 s")
	f.Float64Var(&cfg.Handovers.Lost, "lost", cfg.Handovers.Lost, "`share` of handovers whose answer is lost")
	f.StringVar(&cfg.Out, "out", "", "JSON result `file`")
	return c
}
