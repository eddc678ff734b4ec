package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// apiKey is where a server's API key is. The key itself stands on no command
// line: every user of the machine could read it there.
type apiKey struct{ env, file string }

func (k *apiKey) flags(c *cobra.Command) {
	c.Flags().StringVar(&k.env, "api-key-env", "", "`name` of the environment variable with the server's API key")
	c.Flags().StringVar(&k.file, "api-key-file", "", "`file` with the server's API key")
}

// read is the key, "" where there is none. No error has it in its text.
func (k *apiKey) read() (string, error) {
	switch {
	case k.env != "" && k.file != "":
		return "", usageError{fmt.Errorf("--api-key-env and --api-key-file: got both, want one")}
	case k.env != "":
		key := strings.TrimSpace(os.Getenv(k.env))
		if key == "" {
			return "", usageError{fmt.Errorf("--api-key-env: got %q, which is not set, want the name of a variable that holds the server's key", k.env)}
		}
		return key, nil
	case k.file != "":
		text, err := os.ReadFile(k.file)
		if err != nil {
			return "", usageError{fmt.Errorf("--api-key-file: %w", err)}
		}
		key := strings.TrimSpace(string(text))
		if key == "" || strings.ContainsAny(key, "\r\n") {
			return "", usageError{fmt.Errorf("--api-key-file: got %q, which does not hold one line, want the server's key alone in it", k.file)}
		}
		return key, nil
	}
	return "", nil
}
