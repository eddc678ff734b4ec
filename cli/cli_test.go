package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
)

// run executes one command line and returns what it printed.
func run(args ...string) (string, error) {
	root := Root()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

func TestPrintedDefaultConfigIsValid(t *testing.T) {
	text, err := run("config", "--print-default")
	if err != nil || text != config.Example {
		t.Fatalf("printed %q, %v", text, err)
	}
	path := filepath.Join(t.TempDir(), "lull.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(text, "capacity: 8GiB", "capacity: 80MiB", 1)), 0o600); err != nil {
		t.Fatal(err) // any machine has so much
	}
	if out, err := run("config", path); err != nil || out != path+": valid\n" {
		t.Errorf("checked: %q, %v", out, err)
	}
	if out, err := run("serve", "--config", path, "--check"); err != nil || out != "the config is valid\n" {
		t.Errorf("serve --check: %q, %v", out, err)
	}
}

func TestWhatDoesNothingIsWarnedOfAndValid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lull.yaml")
	if err := os.WriteFile(path, []byte("engines: [{name: a, kind: vllm, url: 'http://a:1'}]\nproxy: {failover: true}"), 0o600); err != nil {
		t.Fatal(err)
	}
	const warning = "warning: proxy.failover: got true with one engine, want two or more in engines: it does nothing, there is no next one to serve\n"
	if out, err := run("serve", "--config", path, "--check"); err != nil || out != warning+"the config is valid\n" {
		t.Errorf("serve --check: %q, %v", out, err)
	}
	if out, err := run("config", path); err != nil || out != warning+path+": valid\n" {
		t.Errorf("config: %q, %v", out, err)
	}
}

// TestFileForALargerMachineIsValidAndWarnedOf: it may be checked where it is
// written, far from where it runs.
func TestFileForALargerMachineIsValidAndWarnedOf(t *testing.T) {
	large := filepath.Join(t.TempDir(), "lull.yaml")
	if err := os.WriteFile(large, []byte("devices: [{id: host0, kind: host, capacity: 900000GiB}]\nengines: [{name: a, kind: vllm, url: 'http://a:1'}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run("config", large)
	if err != nil || !strings.HasPrefix(out, "warning: devices[0].capacity: got 900000.0GiB, want at most this machine's memory in all, ") || !strings.HasSuffix(out, large+": valid\n") {
		t.Errorf("config: %q, %v", out, err)
	}
}

func TestBadCommandLinesAreUsageErrorsThatSayWhatToGive(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "lull.yaml")
	if err := os.WriteFile(bad, []byte("engines: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "lull.yaml")
	if err := os.WriteFile(large, []byte("devices: [{id: host0, kind: host, capacity: 900000GiB}]\nengines: [{name: a, kind: vllm, url: 'http://a:1'}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no config":   {[]string{"serve"}, "--config: got none, want the path of a lull.yaml"},
		"both":        {[]string{"serve", "--config", bad, "--upstream", "http://a:1"}, "--config and --upstream: got both, want one"},
		"bad file":    {[]string{"serve", "--config", bad}, bad + ": engines: got none, want at least one with a url"},
		"bad url":     {[]string{"serve", "--upstream", "nowhere"}, `--upstream: got "nowhere", want http://host:port`},
		"bad admin":   {[]string{"serve", "--upstream", "http://a:1", "--admin", "nowhere"}, `--admin: got "nowhere", want host:port`},
		"bad listen":  {[]string{"serve", "--upstream", "http://a:1", "--listen", "here"}, `--listen: got "here", want host:port`},
		"own url":     {[]string{"serve", "--upstream", "http://127.0.0.1:8080"}, `--upstream: got "http://127.0.0.1:8080", want the LLM server's address: this is Lull's own (listen)`},
		"one address": {[]string{"serve", "--upstream", "http://a:1", "--admin", "127.0.0.1:8080", "--check"}, `--admin: got "127.0.0.1:8080", want another address than that for clients (listen: "127.0.0.1:8080")`},
		"no such":     {[]string{"serve", "--config", bad + ".none"}, bad + ".none"},
		"idle config": {[]string{"config"}, "config: got nothing to do, want --print-default or a FILE to check"},
		"too large":   {[]string{"serve", "--config", large, "--check"}, "devices[0].capacity: got 900000.0GiB, want at most this machine's memory in all, "},
		"bad check":   {[]string{"config", bad}, "engines: got none"},
		"doctor":      {[]string{"doctor", "--json"}, "run `python -m lull.doctor` in its environment"},
		"flag":        {[]string{"serve", "--bogus"}, "unknown flag: --bogus"},
		"verb's flag": {[]string{"--check"}, "unknown flag: --check; want `lull serve --check`"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(c.args...)
			var usage usageError
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &usage) {
				t.Errorf("error %v (usage %v), want %q", err, errors.As(err, &usage), c.want)
			}
		})
	}
}

func TestServeHasAtMostTenFlags(t *testing.T) {
	for _, c := range Root().Commands() {
		if c.Name() != "serve" {
			continue
		}
		if n := strings.Count(c.Flags().FlagUsages(), "--"); n > 10 {
			t.Errorf("serve has %d flags, want at most 10: the rest belongs into lull.yaml", n)
		}
	}
}
