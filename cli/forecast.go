package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/benchmarks/forecast"
	"github.com/lull-project/lull/kvbudget"
	"github.com/lull-project/lull/size"
)

// ForecastCommand reads a model's KV geometry, and scores forecasts on a trace.
func ForecastCommand() *cobra.Command {
	cfg := forecast.DefaultConfig()
	var geometry string
	var d kvbudget.Deployment
	c := &cobra.Command{
		Use:   "forecast",
		Short: "Show a model's KV geometry, or score forecasts of KV need on a trace",
		Long: `With --geometry alone, says how many bytes of KV cache a token, a block and a request of a model take.
With --trace, replays a trace with no engine and scores the forecast of the largest KV need against
baselines. Traces: files of Azure LLM 2023 or 2024, Mooncake, BurstGPT, or a ServeGen folder; "embedded"
is the slice that comes with Lull.`,
		Example: "  lull forecast --geometry config.json --tp 2\n  lull forecast --trace embedded --geometry 128KiB",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			stages, err := readGeometry(geometry, d, &cfg)
			if err != nil {
				return usageError{err}
			}
			switch cfg.Trace {
			case "":
				if geometry == "" {
					return usageError{errors.New("forecast: got nothing to do, want --geometry (a config.json or bytes per token) or --trace")}
				}
				showGeometry(c, cfg.Layout, stages)
				return nil
			case "embedded":
				cfg.Trace = ""
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			cfg.Command = strings.TrimSpace(c.CommandPath() + " " + strings.Join(args, " "))
			_, err = forecast.Run(c.Context(), c.OutOrStdout(), cfg)
			return err
		},
	}
	forecastFlags(c, &cfg, &geometry, &d)
	return c
}

func forecastFlags(c *cobra.Command, cfg *forecast.Config, geometry *string, d *kvbudget.Deployment) {
	f := c.Flags()
	f.StringVar(geometry, "geometry", "", "a model's `config.json`, or the bytes of one token such as 128KiB")
	f.IntVar(&d.TP, "tp", 1, "tensor-parallel `devices`")
	f.IntVar(&d.PP, "pp", 1, "pipeline `stages`")
	f.StringVar(&d.KVDType, "kv-dtype", "auto", "the engine's KV cache `dtype`; auto is the model's")
	f.IntVar(&d.BlockTokens, "block-tokens", 16, "`tokens` in a KV block")
	f.BoolVar(&d.KeepAll, "no-windows", false, "the engine keeps every token in every layer")
	f.BoolVar(&d.PadGroups, "pad-groups", false, "pad windowed layers to whole groups, as vLLM's hybrid manager does")
	f.StringVar(&cfg.Trace, "trace", "", "`file` or folder to replay, or embedded")
	f.DurationVar(&cfg.Part.From, "from", 0, "begin this `long` into the trace")
	f.DurationVar(&cfg.Part.For, "for", 0, "replay this `long`; 0 is to the end")
	f.Float64Var(&cfg.Part.Rate, "rate", 1, "multiply the arrival rate by this `factor`")
	f.Uint64Var(&cfg.Part.Seed, "seed", cfg.Part.Seed, "`seed` of arrivals that the format leaves open")
	f.DurationVar(&cfg.Service.TBT, "tbt", cfg.Service.TBT, "`time` between tokens of the engine stood in for")
	f.Float64Var(&cfg.Service.PromptRate, "prompt-rate", cfg.Service.PromptRate, "prompt `tokens` a second of that engine")
	f.DurationSliceVar(&cfg.Horizons, "within", cfg.Horizons, "score the largest need within these `times`")
	f.DurationVar(&cfg.Warmup, "warmup", cfg.Warmup, "leave the first `time` out of the scores")
	f.BoolVar(&cfg.TimeOfDay, "time-of-day", cfg.TimeOfDay, "forecast by the time of day too, once two days were seen")
	f.StringVar(&cfg.Out, "out", "", "JSON result `file`")
	f.StringVar(&cfg.Plot, "plot", "", "with --trace: draw 90 s to `file`-HORIZON.svg")
	f.DurationVar(&cfg.PlotFrom, "plot-from", cfg.PlotFrom, "begin the drawing this `long` into the replay")
}

// readGeometry reads bytes by hand or a config.json, with its pipeline stages
// where there are several. A replay has the layout of the fullest device.
func readGeometry(from string, d kvbudget.Deployment, cfg *forecast.Config) (stages []kvbudget.Layout, err error) {
	if from == "" {
		return nil, nil
	}
	if b, err := size.Parse(from); err == nil {
		cfg.Layout, err = kvbudget.FlatLayout(b, max(d.BlockTokens, 1), "given by hand")
		return nil, err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return nil, fmt.Errorf("forecast: --geometry: %w; %w", err, kvbudget.ErrByHand)
	}
	name := filepath.Base(from)
	if cfg.Layout, err = kvbudget.ParseConfig(name, text, d); err != nil || d.PP < 2 {
		return nil, err
	}
	return kvbudget.ParseStages(name, text, d)
}

// shownTokens are the lengths of requests whose bytes are shown.
var shownTokens = []int{1, 1024, 8192, 32768}

func showGeometry(c *cobra.Command, l kvbudget.Layout, stages []kvbudget.Layout) {
	w := c.OutOrStdout()
	fmt.Fprintln(w, l)
	for _, tokens := range shownTokens {
		fmt.Fprintf(w, "request of %5d tokens: %v\n", tokens, l.Request(tokens))
	}
	for s, l := range stages {
		fmt.Fprintf(w, "stage %d: %v\n", s, l)
	}
	if len(stages) > 0 {
		for _, tokens := range shownTokens {
			s := kvbudget.Fullest(stages, tokens)
			fmt.Fprintf(w, "request of %5d tokens: most on stage %d, %v\n", tokens, s, stages[s].Request(tokens))
		}
	}
}
