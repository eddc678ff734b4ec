package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/sidecar"
)

// ConfigCommand prints the commented default and checks files.
func ConfigCommand() *cobra.Command {
	var printDefault bool
	c := &cobra.Command{
		Use:   "config [FILE]",
		Short: "Print the commented default lull.yaml, or check a file",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if printDefault {
				fmt.Fprint(c.OutOrStdout(), config.Example)
				return nil
			}
			if len(args) == 0 {
				return usageError{errors.New("config: got nothing to do, want --print-default or a FILE to check")}
			}
			file, err := config.Load(args[0])
			if err != nil {
				return usageError{err}
			}
			if err := sidecar.ReadableTLS(file); err != nil { // the file may be another machine's
				fmt.Fprintln(c.ErrOrStderr(), "warning:", err)
			}
			err = fitsHere(c, file)
			switch {
			case errors.Is(err, sidecar.ErrTooLarge), errors.Is(err, sidecar.ErrNoGPU): // likewise
				fmt.Fprintln(c.ErrOrStderr(), "warning:", err)
			case err != nil:
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), args[0]+": valid")
			return nil
		},
	}
	c.Flags().BoolVar(&printDefault, "print-default", false, "print lull.yaml with every key, its default and what it does")
	return c
}

// fitsHere refuses a config that does not fit this machine and prints what else is
// worth a warning, and what GPUs there are of those that it names.
func fitsHere(c *cobra.Command, file config.File) error {
	warnings, err := sidecar.FitsMachine(file)
	if err != nil {
		return usageError{err}
	}
	for _, w := range slices.Concat(file.Warnings(), warnings) {
		fmt.Fprintln(c.ErrOrStderr(), "warning:", w)
	}
	found, err := sidecar.FindGPUs(file)
	for _, line := range found {
		fmt.Fprintln(c.OutOrStdout(), line)
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}
