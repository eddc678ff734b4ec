package cli

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lull-project/lull/config"
)

// keyBytes is the randomness of a key.
const keyBytes = 32

// KeyCommand makes API keys for Lull's clients.
func KeyCommand() *cobra.Command {
	var stdin bool
	c := &cobra.Command{
		Use:   "key",
		Short: "Make an API key for a client, with the hash for lull.yaml",
		Long: "Make a new API key and the hash by which auth.keys of lull.yaml knows it. The key is printed once and kept nowhere; give it to the client,\n" +
			"which sends it as `Authorization: Bearer KEY`.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if stdin {
				key, err := readKey(c.InOrStdin())
				if err != nil {
					return usageError{err}
				}
				fmt.Fprintf(c.OutOrStdout(), "hash  %s\n", hashOf(key))
				return nil
			}
			key := newKey()
			fmt.Fprintf(c.OutOrStdout(), "key   %s\nhash  %s\n", key, hashOf(key))
			return nil
		},
	}
	c.Flags().BoolVar(&stdin, "stdin", false, "hash the key on standard input (one line) instead of making one")
	return c
}

func hashOf(key string) string { return config.HashText(sha256.Sum256([]byte(key))) }

func newKey() string {
	var b [keyBytes]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return "lull-" + base64.RawURLEncoding.EncodeToString(b[:])
}

// readKey reads one line. A key is never an argument: everybody on the machine
// can read those.
func readKey(r io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(r, 1<<16)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("key: standard input: %w", err)
	}
	key := strings.TrimRight(line, "\r\n")
	if key == "" || strings.ContainsAny(key, " \t") {
		return "", errors.New("key: got no key on standard input, want one line without blanks")
	}
	return key, nil
}
