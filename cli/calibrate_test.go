package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCalibrateErrorsNameTheFlag(t *testing.T) {
	t.Setenv("LULL_TEST_EMPTY", "")
	for args, want := range map[string]string{
		"calibrate":                       `--upstream: got "", want http://host:port, https://host:port or unix:///path/of/the/socket`,
		"calibrate --upstream http://a:1": "--model: got none, want the name of a model",
		"calibrate --upstream http://a:1 --model m --runs 1":                                  "--runs: got 1, want 3 to 1000",
		"calibrate --upstream http://a:1 --model m --prompts 1,x":                             `invalid argument "1,x" for "--prompts" flag`,
		"calibrate --upstream http://a:1 --model m --api-key-env LULL_TEST_EMPTY":             `--api-key-env: got "LULL_TEST_EMPTY", which is not set, want the name of a variable that holds the server's key`,
		"calibrate --upstream http://a:1 --model m --max-spread 11 --force --write lull.yaml": "--max-spread: got 11, want more than 0 and at most 10",
	} {
		_, err := run(strings.Fields(args)...)
		var usage usageError
		if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.As(err, &usage) {
			t.Errorf("%s: got %v (usage %v), want %s", args, err, errors.As(err, &usage), want)
		}
	}
}

func TestKeyOfAServerIsReadFromAVariableOrAFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("LULL_TEST_KEY", "sk-env\n")
	for want, k := range map[string]apiKey{"sk-env": {env: "LULL_TEST_KEY"}, "sk-file": {file: write("key", " sk-file\n")}, "": {}} {
		if got, err := k.read(); got != want || err != nil {
			t.Errorf("%+v: got %q, %v, want %q", k, got, err, want)
		}
	}
	empty, two := write("empty", "\n"), write("two", "sk-a\nsk-b\n")
	for want, args := range map[string]string{
		"--api-key-env and --api-key-file: got both, want one":                                                           "--api-key-env LULL_TEST_KEY --api-key-file " + empty,
		`--api-key-file: got "` + empty + `", which does not hold one line, want the server's key alone in it`:           "--api-key-file " + empty,
		`--api-key-file: got "` + two + `", which does not hold one line, want the server's key alone in it`:             "--api-key-file " + two,
		"--api-key-file: open " + dir + "/none: no such file or directory":                                               "--api-key-file " + dir + "/none",
		`--api-key-env: got "LULL_TEST_NONE", which is not set, want the name of a variable that holds the server's key`: "--api-key-env LULL_TEST_NONE",
	} {
		for _, verb := range []string{"probe http://127.0.0.1:1 ", "calibrate --upstream http://127.0.0.1:1 --model m "} {
			_, err := run(strings.Fields(verb + args)...)
			var usage usageError
			if err == nil || err.Error() != want || !errors.As(err, &usage) {
				t.Errorf("%s%s: got %v (usage %v), want %s", verb, args, err, errors.As(err, &usage), want)
			}
		}
	}
}

func TestCalibrateHelpShowsTheDefaults(t *testing.T) {
	out, err := run("calibrate", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--factor times", "(default 4)", "(default [32,128,512,1024])", "(default 0.25)", "--write string"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the help:\n%s", want, out)
		}
	}
}
