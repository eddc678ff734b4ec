package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/benchmarks/proxybench"
)

// exitUsage is the exit status for a bad config or a bad flag.
const exitUsage = 2

// usageError marks an error that the user mends in a file or on the command
// line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// Main runs one command and returns its exit status: 0, 1 for a failure, 2 for
// a bad config or flag.
func Main(args []string) int {
	if proxybench.Child() { // a benchmark's upstream or proxy, started from this program
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := Root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "lull:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return 1
}

// version is the module's, or the commit that was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return s.Value
		}
	}
	return info.Main.Version
}

// ofVerb adds to an error about a flag of `lull` itself which of its verbs have it.
func ofVerb(c *cobra.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if c.HasParent() || !unknown {
		return err
	}
	var have []string
	for _, verb := range c.Commands() {
		if verb.Flags().Lookup(name) != nil {
			have = append(have, fmt.Sprintf("`%s --%s`", verb.CommandPath(), name))
		}
	}
	if len(have) == 0 {
		return err
	}
	return fmt.Errorf("%w; want %s", err, strings.Join(have, " or "))
}

// Root is the whole command tree.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:           "lull",
		Short:         "Train in the lulls of an LLM server",
		Long:          "Lull sits in front of an LLM server and makes a training job on the same device give memory back before requests feel it.",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{ofVerb(c, err)} })
	root.AddCommand(ServeCommand(), EmulateCommand(), DemoCommand(), ConfigCommand(), KeyCommand(), CalibrateCommand(), ForecastCommand(), ProbeCommand(), BenchCommand(), DoctorCommand(), TopCommand())
	return root
}
