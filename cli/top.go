package cli

import (
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/top"
)

// windowSize is a terminal's columns and rows, 0 where it does not say.
func windowSize(f *os.File) (columns, rows int) {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(w.Col), int(w.Row)
}

// TopCommand shows a running sidecar on the terminal.
func TopCommand() *cobra.Command {
	cfg := top.DefaultConfig()
	c := &cobra.Command{
		Use:   "top [URL]",
		Short: "Show who has how much memory of what kind, shrinks and objectives, again each second",
		Long: `Reads the admin API of a running lull serve (` + cfg.URL + ` unless a URL is given) and shows, by
owner, its memory by category and what of it could be taken back within 5 ms, 50 ms and 1 s, bounds and
budgets, the last handovers and the objectives' attainment. Ctrl-C ends it. --once prints one screen as
plain text, which is also what a pipe or a file gets.`,
		Example: "  lull top\n  lull top --once http://127.0.0.1:9797",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if cfg.URL = args[0]; !strings.Contains(cfg.URL, "://") {
					cfg.URL = "http://" + cfg.URL
				}
			}
			if f, ok := c.OutOrStdout().(*os.File); ok && isatty.IsTerminal(f.Fd()) {
				cfg.Size = func() (int, int) { return windowSize(f) }
			} else {
				cfg.Once = true
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			return top.Watch(c.Context(), c.OutOrStdout(), cfg, http.DefaultClient, time.Now)
		},
	}
	c.Flags().DurationVar(&cfg.Every, "every", cfg.Every, "`time` from one screen to the next")
	c.Flags().BoolVar(&cfg.Once, "once", false, "print one screen and end")
	return c
}
