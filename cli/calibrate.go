package cli

import (
	"github.com/spf13/cobra"

	"github.com/lull-project/lull/calibrate"
)

// CalibrateCommand measures an idle LLM server and makes objectives of it.
func CalibrateCommand() *cobra.Command {
	cfg := calibrate.DefaultConfig()
	var key apiKey
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure an idle LLM server and make objectives of it",
		Long: `Sends requests of several prompt and answer lengths to an idle LLM server, one at a time after a
warm-up, fits TTFT = a + b * prompt tokens and the mean gap between chunks, and prints both with their
spread. --write puts objectives of --factor times that into the slo section of a lull.yaml and keeps the
rest of the file; a server that serves others, or whose figures spread too far, is refused. Give the
server's own address: a sidecar's is refused.`,
		Example: "  lull calibrate --upstream http://127.0.0.1:8000 --model lull-emulated --write lull.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if cfg.Key, err = key.read(); err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			return calibrate.Run(c.Context(), c.OutOrStdout(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Upstream, "upstream", "", "the server's own `URL`: http, https or unix:///path")
	f.StringVar(&cfg.Model, "model", "", "`name` of the model to ask for")
	f.IntSliceVar(&cfg.Prompts, "prompts", cfg.Prompts, "prompt lengths in `words`, at least two")
	f.IntSliceVar(&cfg.Answers, "answers", cfg.Answers, "answer lengths in `tokens`")
	f.IntVar(&cfg.Runs, "runs", cfg.Runs, "requests of each prompt length with each answer length")
	f.IntVar(&cfg.WarmUp, "warm-up", cfg.WarmUp, "requests that are not measured, before the others")
	f.Float64Var(&cfg.Factor, "factor", cfg.Factor, "objectives are so many `times` what was measured")
	f.Float64Var(&cfg.MaxSpread, "max-spread", cfg.MaxSpread, "`part` by which nine of ten requests may lie off the fit and the mean")
	f.DurationVar(&cfg.Limit, "limit", cfg.Limit, "ends one request after this `duration`")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "`seed` of the prompts and of the order")
	key.flags(c)
	tlsFlags(c, &cfg.TLS)
	f.StringVar(&cfg.Write, "write", "", "lull.yaml that gets the objectives; everything else in it stays")
	f.BoolVar(&cfg.Force, "force", false, "write from a loaded or noisy server too")
	return c
}
