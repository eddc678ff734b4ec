package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/engine"
)

// ProbeCommand says what an endpoint is and what Lull would do with it.
func ProbeCommand() *cobra.Command {
	cfg := engine.DefaultProbe()
	var key apiKey
	var gpus bool
	c := &cobra.Command{
		Use:   "probe URL",
		Short: "Say what an LLM endpoint is, what it can do and what Lull would do with it",
		Long: `Asks an endpoint what it is (lull emulate, vLLM, SGLang, Triton, llama.cpp, text-generation-inference,
Ollama or anything OpenAI-compatible), reads it once as a sidecar would, and prints what it lets Lull do
and the lines for lull.yaml. It only reads. Give the server's own address: a sidecar's is refused. The exit
status is 1 when there is no such server, or when it cannot be read. With --gpus and no URL it lists this
machine's NVIDIA GPUs and MIG instances and what of them can be read from here.`,
		Example: "  lull probe http://127.0.0.1:8000\n  lull probe --gpus",
		Args: func(_ *cobra.Command, args []string) error {
			if gpus && len(args) > 0 {
				return usageError{fmt.Errorf("probe: got %d arguments beside --gpus, want none", len(args))}
			}
			if len(args) != 1 && !gpus {
				return usageError{fmt.Errorf("probe: got %d arguments, want the URL of a server", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if gpus {
				return probeGPUs(c.Context(), c.OutOrStdout(), device.ListGPUs, readGPU)
			}
			if cfg.URL = args[0]; !strings.Contains(cfg.URL, "://") && !strings.HasPrefix(cfg.URL, "unix:") {
				cfg.URL = "http://" + cfg.URL
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			var err error
			if cfg.Key, err = key.read(); err != nil {
				return err
			}
			r, err := engine.Probe(c.Context(), cfg)
			if err != nil {
				return err
			}
			if err := r.Print(c.OutOrStdout()); err != nil {
				return err
			}
			return r.Trouble
		},
	}
	c.Flags().BoolVar(&gpus, "gpus", false, "instead of a server, list this machine's GPUs")
	key.flags(c)
	tlsFlags(c, &cfg.TLS)
	c.Flags().StringVar(&cfg.MetricsURL, "metrics-url", "", "Triton's metrics `URL`, where they are not on port 8002")
	c.Flags().DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "ends the whole of it after this `duration`")
	return c
}
