package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/config"
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
			if _, err := config.Load(args[0]); err != nil {
				return usageError{err}
			}
			fmt.Fprintln(c.OutOrStdout(), args[0]+": valid")
			return nil
		},
	}
	c.Flags().BoolVar(&printDefault, "print-default", false, "print lull.yaml with every key, its default and what it does")
	return c
}
