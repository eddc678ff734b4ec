package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/emulator"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// EmulateCommand is lull emulate: an LLM server to try Lull against, whose KV
// cache is real memory. It runs until its context ends.
func EmulateCommand() *cobra.Command {
	cfg := emulator.DefaultConfig()
	faults := map[string]*string{}
	cmd := &cobra.Command{
		Use:   "emulate",
		Short: "Serve an emulated LLM whose KV cache is real memory",
		Long: "Serve an OpenAI-compatible LLM server without an LLM: its words mean nothing, its\n" +
			"timing follows coefficients measured on a GPU, and its KV cache is real memory\n" +
			"under a bound that can be moved (PUT /lull/kv_bound). Prints one JSON line when ready.",
		Example: "  lull emulate --listen 127.0.0.1:8000 --pool 640MiB --resident 256MiB",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Faults = joinFaults(faults)
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			return emulator.Run(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	emulateFlags(cmd, &cfg)
	for _, fault := range []struct{ name, usage string }{
		{"latency", "fault: hold every answer for this `duration`"},
		{"stall-after", "fault: stop sending after so many `tokens`, connection open"},
		{"reset-after", "fault: reset the connection after so many `tokens`"},
		{"error-after", "fault: send an error after so many `tokens`"},
		{"split-writes", "fault: write answers in pieces of so many `bytes`"},
		{"slow-close", "fault: keep answers open for this `duration` after their end"},
	} {
		faults[fault.name] = cmd.Flags().String("fault-"+fault.name, "", fault.usage)
	}
	return cmd
}

func emulateFlags(cmd *cobra.Command, cfg *emulator.Config) {
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "`address` to listen on; port 0 takes a free one")
	f.StringVar(&cfg.Model, "model", cfg.Model, "served model `name`")
	f.StringVar(&cfg.Calibration, "calibration", cfg.Calibration, "times of which `GPU|model`: "+strings.Join(model.Calibrations(), ", "))
	f.Float64Var(&cfg.TimeScale, "time-scale", cfg.TimeScale, "divide all times by this `factor`: 2 is twice as fast")
	f.IntVar(&cfg.MaxBatchedTokens, "max-batched-tokens", cfg.MaxBatchedTokens, "`tokens` a step computes at most")
	f.IntVar(&cfg.MaxSeqs, "max-seqs", cfg.MaxSeqs, "`requests` that run at once at most")
	f.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "`tokens` of one request at most, prompt and answer")
	f.IntVar(&cfg.MeanOutputTokens, "mean-output-tokens", cfg.MeanOutputTokens, "mean `tokens` of an answer whose request does not say its length")
	f.IntVar(&cfg.BlockTokens, "block-tokens", cfg.BlockTokens, "`tokens` in a KV block")
	f.Var((*sizeFlag)(&cfg.KVBytesPerToken), "kv-bytes-per-token", "KV cache `size` of one token")
	f.Var((*sizeFlag)(&cfg.Pool), "pool", "`size` of the whole KV pool")
	f.Var((*sizeFlag)(&cfg.Resident), "resident", "`size` of memory taken at the start, as weights are")
	f.Var((*boundFlag)(&cfg.Bound), "bound", "`size` that the KV cache may take at the start, or pool")
	f.BoolVar(&cfg.StaticPool, "static-pool", cfg.StaticPool, "map the whole pool at the start and give nothing back, whatever bound it takes; with kind: vllm in lull.yaml it is a stock server to Lull")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "`seed` of drawn answer lengths")
}

// joinFaults writes the fault flags that were given as one text, in a fixed order.
func joinFaults(faults map[string]*string) string {
	var parts []string
	for _, name := range []string{"latency", "split-writes", "stall-after", "error-after", "reset-after", "slow-close"} {
		if v := faults[name]; v != nil && *v != "" {
			parts = append(parts, name+"="+*v)
		}
	}
	return strings.Join(parts, ",")
}

// sizeFlag reads sizes as package size does.
type sizeFlag size.Bytes

func (f *sizeFlag) String() string     { return size.Bytes(*f).String() }
func (f *sizeFlag) Type() string       { return "size" }
func (f *sizeFlag) Set(s string) error { return (*size.Bytes)(f).UnmarshalText([]byte(s)) }

// boundFlag is a size, or "pool".
type boundFlag size.Bytes

func (f *boundFlag) Type() string { return "size" }

func (f *boundFlag) String() string {
	if size.Bytes(*f) == emulator.WholePool {
		return "pool"
	}
	return size.Bytes(*f).String()
}

func (f *boundFlag) Set(s string) error {
	if s == "pool" {
		*f = boundFlag(emulator.WholePool)
		return nil
	}
	return (*size.Bytes)(f).UnmarshalText([]byte(s))
}
