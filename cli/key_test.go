package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
)

func TestKeyPrintsAKeyAndTheHashThatAConfigTakes(t *testing.T) {
	form := regexp.MustCompile(`^key   (lull-[A-Za-z0-9_-]{43})\nhash  (sha256:[0-9a-f]{64})\n$`)
	seen := map[string]bool{}
	for range 2 {
		out, err := run("key")
		m := form.FindStringSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("got %q, %v", out, err)
		}
		sum := sha256.Sum256([]byte(m[1]))
		if m[2] != "sha256:"+hex.EncodeToString(sum[:]) {
			t.Errorf("%s: got the hash %s, want the key's SHA-256", m[1], m[2])
		}
		f, err := config.Parse([]byte("engines: [{name: a, kind: vllm, url: 'http://a:1'}]\nauth: {keys: [{name: alice, hash: '" + m[2] + "'}]}"))
		if err != nil || f.Auth.Keys[0].Sum() != sum {
			t.Errorf("a config with it: %v", err)
		}
		seen[m[1]] = true
	}
	if len(seen) != 2 {
		t.Error("the same key came twice")
	}
}

func TestKeyHashesTheOneOnStandardInput(t *testing.T) {
	sum := sha256.Sum256([]byte("sk-mine"))
	want := "hash  sha256:" + hex.EncodeToString(sum[:]) + "\n"
	for _, in := range []string{"sk-mine", "sk-mine\n", "sk-mine\r\nrest"} {
		var out strings.Builder
		c := KeyCommand()
		c.SetArgs([]string{"--stdin"})
		c.SetIn(strings.NewReader(in))
		c.SetOut(&out)
		if err := c.Execute(); err != nil || out.String() != want {
			t.Errorf("%q: got %q, %v; want %q", in, out.String(), err, want)
		}
	}
	for _, in := range []string{"", "\n", "two words"} {
		c := KeyCommand()
		c.SetArgs([]string{"--stdin"})
		c.SetIn(strings.NewReader(in))
		c.SetErr(&strings.Builder{})
		err := c.Execute()
		if usage := new(usageError); err == nil || err.Error() != "key: got no key on standard input, want one line without blanks" || !errors.As(err, usage) {
			t.Errorf("%q: got %v", in, err)
		}
	}
}
