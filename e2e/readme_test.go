package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// readmesBurst is what the README's command asks curl for, with a curl that only
// notes it: one list of arguments a call.
func readmesBurst(t *testing.T) (calls [][]string) {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("(?s)```\n(seq [^`]*xargs[^`]*)```").FindSubmatch(readme)
	if command == nil {
		t.Fatal("README.md: no command in a fence of its own that begins with seq and uses xargs")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "curl"), []byte("#!/bin/sh\nprintf '%s\\0' \"$@\" > "+dir+"/call.$$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash", "-c", string(command[1]))
	shell.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command[1], err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "call.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"))
	}
	return calls
}

// TestTheReadmesBurstMakesTrainingGiveMemoryBack asks for what the README's command
// asks for, of this test's sidecar and its smaller engine.
func TestTheReadmesBurstMakesTrainingGiveMemoryBack(t *testing.T) {
	calls := readmesBurst(t)
	if len(calls) != 12 {
		t.Fatalf("got %d calls of curl, want twelve", len(calls))
	}
	r := startRig(t, "demo/train.py", "--batch", "64")
	var all sync.WaitGroup
	for _, args := range calls {
		at, data := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "http://127.0.0.1:8080/") }), slices.Index(args, "-d")
		if at < 0 || data < 0 || data+1 == len(args) {
			t.Fatalf("got curl %q, want Lull's address and a body after -d", args)
		}
		url, body := args[at], args[data+1]
		all.Go(func() {
			got, err := fetch(http.MethodPost, strings.Replace(url, "http://127.0.0.1:8080", r.url, 1), strings.Replace(body, "lull-emulated", "m", 1))
			if err != nil || got.status != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(string(got.body)), "data: [DONE]") {
				t.Errorf("%.120s...: got %d %.200s, %v; want a whole stream", body, got.status, got.body, err)
			}
		})
	}
	all.Wait()
	if len(r.shrinks(t)) == 0 {
		t.Errorf("got no shrink that freed memory: %s", get(r.adminURL+"/api/v1/handovers"))
	}
}
