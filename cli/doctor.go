package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// DoctorCommand says where the doctor is: it looks at what a training process
// finds, so it is a part of the training runtime.
func DoctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "doctor",
		Short:              "Say where the doctor is",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("doctor: it looks at what a training process finds here and has come with lull-trainer: run `python -m lull.doctor` in its environment, with its LULL_ variables; `lull probe URL` looks at an LLM server")}
		},
	}
}
