package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/benchmarks/corebench"
	"github.com/lull-project/lull/benchmarks/proxybench"
)

// BenchCommand measures Lull itself; what is compared runs interleaved in one
// run.
func BenchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure what Lull itself costs", Args: cobra.NoArgs}
	c.AddCommand(benchProxyCommand(), benchPeersCommand(), benchCoreCommand(), benchReserveCommand())
	return c
}

// benchProxyCommand compares direct calls, a bare reverse proxy and Lull.
func benchProxyCommand() *cobra.Command {
	cfg := proxybench.DefaultConfig()
	c := &cobra.Command{
		Use:   "proxy",
		Short: "Time that the data path adds to an event, beside direct calls and a bare reverse proxy",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cfg.Command = strings.TrimSpace(c.CommandPath() + " " + strings.Join(args, " "))
			return proxybench.Run(c.Context(), c.OutOrStdout(), cfg)
		},
	}
	c.Flags().IntVar(&cfg.Requests, "requests", cfg.Requests, "requests per arm")
	c.Flags().IntVar(&cfg.Concurrency, "concurrency", cfg.Concurrency, "clients at once")
	c.Flags().IntVar(&cfg.Streams, "streams", cfg.Streams, "streams at once in the row of many")
	c.Flags().DurationVar(&cfg.Slice, "slice", cfg.Slice, "how long an arm takes such a load before the next one does")
	c.Flags().IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "slices of each arm")
	c.Flags().StringVar(&cfg.Out, "out", cfg.Out, "JSON result")
	return c
}

// benchPeersCommand compares Lull with other proxies, which it installs.
func benchPeersCommand() *cobra.Command {
	cfg := proxybench.DefaultPeersConfig()
	c := &cobra.Command{
		Use:   "peers",
		Short: "Time that Lull and other proxies add to an event; installs nginx, HAProxy, Caddy, LiteLLM, vllm-router and Portkey",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cfg.Command = strings.Join(append([]string{c.Root().Name()}, os.Args[1:]...), " ")
			return proxybench.RunPeers(c.Context(), c.OutOrStdout(), cfg)
		},
	}
	c.Flags().StringSliceVar(&cfg.Peers, "peers", cfg.Peers, "only these of them (default all)")
	c.Flags().Float64Var(&cfg.Rate, "rate", cfg.Rate, "requests a second of the first run")
	c.Flags().DurationVar(&cfg.Slice, "slice", cfg.Slice, "how long one proxy takes the load before the next one does")
	c.Flags().IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "slices of each proxy")
	c.Flags().DurationVar(&cfg.Capacity, "capacity", cfg.Capacity, "how long each proxy is asked for all that it can carry")
	c.Flags().StringVar(&cfg.Out, "out", cfg.Out, "JSON result")
	return c
}

// benchCoreCommand times steps of the core and the idle sidecar, which is this
// program started again.
func benchCoreCommand() *cobra.Command {
	cfg := corebench.DefaultConfig()
	c := &cobra.Command{
		Use:   "core",
		Short: "Time of one controller step with many live requests, and what the idle sidecar takes of a core",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("bench core: find this program: %w", err)
			}
			cfg.Exe = exe
			cfg.Command = strings.TrimSpace(c.CommandPath() + " " + strings.Join(args, " "))
			return corebench.Run(c.Context(), c.OutOrStdout(), cfg)
		},
	}
	c.Flags().IntVar(&cfg.Requests, "requests", cfg.Requests, "live requests")
	c.Flags().IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "timed steps of each kind")
	c.Flags().DurationVar(&cfg.Window, "window", cfg.Window, "how long the idle sidecar is watched")
	c.Flags().StringVar(&cfg.Out, "out", cfg.Out, "JSON result")
	return c
}
