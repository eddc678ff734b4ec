package cli

import (
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/lull-project/lull/demo"
)

// pythonEnv names the interpreter with torch when no flag does.
const pythonEnv = "LULL_PYTHON"

// DemoCommand shows the main job on this machine: an LLM server, the sidecar
// and a real training job share one device.
func DemoCommand() *cobra.Command {
	opts := demo.DefaultOptions()
	var seconds int
	if p := os.Getenv(pythonEnv); p != "" {
		opts.Python = p
	}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Replay a real trace against an LLM server with real training beside it",
		Long: `Replays a slice of a real trace against an LLM server behind the sidecar, with a real PyTorch
training job on the same device of real memory, in five phases: inference only, two static splits,
naive release, and Lull. Writes report.html, events.jsonl and summary.json. The server is an emulator
(under 4 minutes; a Python with torch) or a real vLLM on CPU with the plugin lull-vllm (some 6
minutes; a Python that has vLLM too). Run it in the repository's root.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opts.Window = time.Duration(seconds) * time.Second
			if err := opts.Validate(); err != nil {
				return usageError{err}
			}
			opts.Color = isatty.IsTerminal(os.Stdout.Fd())
			_, err := demo.Run(c.Context(), c.OutOrStdout(), opts)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&opts.Out, "out", opts.Out, "folder for report.html, events.jsonl, summary.json and logs")
	f.IntVar(&seconds, "seconds", int(opts.Window.Seconds()), "seconds of load per phase; 0: 20 for the emulator, 60 for vllm")
	f.IntVar(&opts.Requests, "requests", opts.Requests, "most requests per phase; 0 sends all that arrive in time")
	f.StringVar(&opts.Engine, "engine", opts.Engine, "LLM server: "+strings.Join(demo.Engines(), " or "))
	f.StringVar(&opts.Study, "study", opts.Study, "what the phases compare: memory, or isolation (vllm only)")
	f.StringVar(&opts.Python, "python", opts.Python, "interpreter with torch (LULL_PYTHON)")
	f.StringSliceVar(&opts.Phases, "phases", nil, "phases to run, of inference-only,static-75,static-50,naive,lull (isolation: inference-only,neither,pace,yield,lull); default all")
	f.IntVar(&opts.TrainerNice, "trainer-nice", opts.TrainerNice, "nice value of the training job, 1 to 19; 0 leaves it the demo's own")
	f.Uint64Var(&opts.Seed, "seed", opts.Seed, "seed of prompts, weights and data order")
	f.StringVar(&opts.Root, "root", opts.Root, "folder with demo/train.py and trainer/python")
	return c
}
