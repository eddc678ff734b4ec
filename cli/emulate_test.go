package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestEmulatePrintsItsReadyLineAndServes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := EmulateCommand()
	cmd.SetOut(w)
	cmd.SetArgs(strings.Fields("--listen 127.0.0.1:0 --pool 8MiB --bound 4MiB --max-model-len 128 --resident 2MiB --model tiny --fault-split-writes 9"))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready struct{ Listening string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + ready.Listening + "/lull/state")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := `"resident_bytes":2097152,"pool_bytes":8388608,"bound_bytes":4194304`; err != nil || !strings.Contains(string(body), want) {
		t.Fatalf("got %s and %v, want %s", body, err, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestEmulateErrorsNameTheFlag(t *testing.T) {
	for args, want := range map[string]string{
		"--pool 1MB":              `invalid argument "1MB" for "--pool" flag: size "1MB": want a number with B, KiB, MiB or GiB, such as 640MiB`,
		"--bound half":            `invalid argument "half" for "--bound" flag: size "half": want a number`,
		"--bound 1GiB":            "emulate: --bound: got 1.0GiB, want 0B to --pool (640.0MiB)",
		"--fault-stall-after two": `emulate: --fault-*: fault "stall-after=two": got "two", want a whole number of at least 0`,
		"extra":                   `unknown command "extra" for "emulate"`,
	} {
		cmd := EmulateCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
		if usage := new(usageError); strings.HasPrefix(want, "emulate: ") && !errors.As(err, usage) {
			t.Errorf("%s: %v is no usage error, so the exit status would be 1", args, err)
		}
	}
}

func TestEmulateHelpShowsTheDefaults(t *testing.T) {
	var out strings.Builder
	cmd := EmulateCommand()
	cmd.SetArgs([]string{"--help"})
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`--bound size`, `(default pool)`, `(default 640.0MiB)`, `(default "a100|Llama-2-13B")`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the help:\n%s", want, fmt.Sprint(out.String()))
		}
	}
}
