package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/admin"
	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/sidecar"
)

// ServeCommand is the sidecar: `lull serve --config lull.yaml`.
func ServeCommand() *cobra.Command {
	var path, upstream, listen, operator string
	var check bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the sidecar in front of an LLM server",
		Long: `Runs the sidecar by a lull.yaml (--config), or without one before a server that it relays and measures
(--upstream); one of the two. --check validates the config for this machine; lull config FILE does so
for another one, whose memory and GPUs this one need not have.`,
		Example: "  lull serve --upstream http://127.0.0.1:8000\n  lull serve --config lull.yaml --check\n  lull serve --config lull.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			load := func() (config.File, error) {
				file, err := serveFile(path, upstream)
				if err != nil {
					return file, err
				}
				file.Listen, file.Admin.Listen = cmp.Or(listen, file.Listen), cmp.Or(operator, file.Admin.Listen)
				return file, byFlag(file.Validate(), map[string]string{"engines[0].url": upstream, "listen": listen, "admin.listen": operator})
			}
			file, err := load()
			if err != nil {
				return usageError{err}
			}
			if check {
				if err := sidecar.ReadableTLS(file); err != nil {
					return usageError{err}
				}
				if err := fitsHere(c, file); errors.Is(err, sidecar.ErrNoGPU) {
					return usageError{fmt.Errorf("%w; all else is valid, and `lull config %s` checks it without this machine's GPUs", err, path)}
				} else if err != nil {
					return err
				}
				fmt.Fprintln(c.OutOrStdout(), "the config is valid")
				return nil
			}
			admin.Quiet()
			caught := catchSignals() // from here SIGHUP no longer ends the process
			defer caught.stop()
			logger, flush := newLogger(file.Telemetry.LogLevel)
			defer flush()
			log.SetFlags(0)
			log.SetOutput(sidecar.LibraryLog(logger, time.Now))
			s, err := sidecar.New(file, logger)
			if err != nil {
				return usageError{err}
			}
			if path != "" {
				s.Follow(path, load)
			}
			caught.tell(s)
			return s.Run(c.Context(), c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&path, "config", "", "lull.yaml to serve by; not beside --upstream")
	c.Flags().StringVar(&upstream, "upstream", "", "without a config: relay and measure the server at this URL (http, https or unix:///path), and lend nothing")
	c.Flags().StringVar(&listen, "listen", "", "address for clients, instead of the config's")
	c.Flags().StringVar(&operator, "admin", "", "address of the admin listener, instead of the config's")
	c.Flags().BoolVar(&check, "check", false, "validate the config, and the files of TLS that it names, and exit")
	return c
}

// byFlag names the flag in an error about a key that a flag has set: set has the
// flags' values by key.
func byFlag(err error, set map[string]string) error {
	if err == nil {
		return nil
	}
	key, rest, ok := strings.Cut(err.Error(), ": ")
	if !ok || set[key] == "" {
		return err
	}
	flag := map[string]string{"engines[0].url": "--upstream", "listen": "--listen", "admin.listen": "--admin"}[key]
	return fmt.Errorf("%s: %s", flag, rest)
}

func serveFile(path, upstream string) (config.File, error) {
	switch {
	case path != "" && upstream != "":
		return config.File{}, errors.New("--config and --upstream: got both, want one")
	case path != "":
		return config.Load(path)
	case upstream != "":
		return config.ForUpstream(upstream), nil // the caller validates it
	}
	return config.File{}, errors.New("--config: got none, want the path of a lull.yaml (see `lull config --print-default`) or --upstream URL")
}
