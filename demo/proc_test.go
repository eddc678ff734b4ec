package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func child(t *testing.T, role string) *proc {
	t.Helper()
	p, err := startProc(procSpec{Name: "child", Path: os.Args[0], Env: []string{roleEnv + "=" + role}, LogDir: t.TempDir(), Ready: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(0) })
	return p
}

func TestChildSaysWhenItIsReadyAndEndsByTerm(t *testing.T) {
	p := child(t, "ready")
	var ready emulatorReady
	if err := p.awaitReady(t.Context(), startLimit, &ready); err != nil {
		t.Fatal(err)
	}
	if ready.PID != 7 || baseURL(ready.Listening) != "http://127.0.0.1:1" {
		t.Errorf("got %+v", ready)
	}
	if err := p.ended(); err != nil {
		t.Errorf("ended: got %v, want nil while it runs", err)
	}
	p.stop(time.Minute)
	if err := p.ended(); err == nil || !strings.Contains(err.Error(), "child: ended (signal: terminated)") {
		t.Errorf("ended: got %v, want how", err)
	}
	text, _ := os.ReadFile(p.log)
	if !strings.Contains(string(text), "later output") {
		t.Errorf("log: got %q, want what came after the ready line", text)
	}
}

func TestChildThatIgnoresTermIsKilled(t *testing.T) {
	p := child(t, "deaf")
	if err := p.awaitReady(t.Context(), startLimit, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	p.stop(10 * time.Millisecond)
	if err := p.ended(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("got %v, want killed", err)
	}
}

func TestAGroupEndsWithAllThatItStarted(t *testing.T) {
	p, err := startProc(procSpec{
		Name: "parent", Path: "/bin/sh", Args: []string{"-c", `sleep 600 & echo "{\"pid\":$!}"; wait`},
		LogDir: t.TempDir(), Ready: true, Group: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var ready emulatorReady
	if err := p.awaitReady(t.Context(), startLimit, &ready); err != nil {
		p.stop(0)
		t.Fatal(err)
	}
	p.stop(time.Minute)
	gone := poll(t.Context(), time.Minute, 10*time.Millisecond, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", ready.PID))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	if !gone {
		t.Errorf("process %d, which the child started, still runs", ready.PID)
	}
}

func TestChildErrorsSayWhatWasSeen(t *testing.T) {
	p := child(t, "broken")
	if err := p.awaitReady(t.Context(), startLimit, &struct{}{}); err == nil || !strings.Contains(err.Error(), "child: ended without a ready line; the end of ") || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("broken child: got %v, want the end of its log", err)
	}
	p = child(t, "babble")
	if err := p.awaitReady(t.Context(), startLimit, &struct{}{}); err == nil || !strings.Contains(err.Error(), `child: ready line "hello`) {
		t.Errorf("babbling child: got %v, want the line", err)
	}
	p = child(t, "mute")
	if err := p.awaitReady(t.Context(), time.Millisecond, &struct{}{}); err == nil || !strings.Contains(err.Error(), "child: no ready line in 1ms; nothing in ") {
		t.Errorf("silent child: got %v", err)
	}
	if _, err := startProc(procSpec{Name: "x", Path: filepath.Join(t.TempDir(), "none"), LogDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "start x: ") {
		t.Errorf("no such binary: got %v", err)
	}
}

func TestChildRunsWhereItIsPut(t *testing.T) {
	cores, err := allowedCores()
	if err != nil {
		t.Fatal(err)
	}
	last := cores[len(cores)-1:]
	p, err := startProc(procSpec{
		Name: "cat", Path: "/bin/sh", Args: []string{"-c", "grep Cpus_allowed_list /proc/self/status; cut -d' ' -f19 /proc/self/stat"},
		Cores: last, Nice: 5, LogDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	text, _ := os.ReadFile(p.log)
	if got := strings.Fields(string(text)); len(got) != 3 || got[1] != coreList(last) || got[2] != "5" {
		t.Errorf("got %q, want core %s and nice 5", text, coreList(last))
	}
	now, _ := allowedCores()
	if len(now) != len(cores) {
		t.Errorf("the test itself: got cores %v, want %v as before", now, cores)
	}
}

func TestPinnedProcessIsPutBack(t *testing.T) {
	before, err := allowedCores()
	if err != nil {
		t.Fatal(err)
	}
	restore, err := pinProcess(before[:1])
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := allowedCores(); len(now) != 1 {
		t.Errorf("pinned: got cores %v, want one", now)
	}
	restore()
	if now, _ := allowedCores(); len(now) != len(before) {
		t.Errorf("restored: got cores %v, want %v", now, before)
	}
}

// TestTheEndOfALogIsShownInFewWords: a job's lines of JSON would fill the screen.
func TestTheEndOfALogIsShownInFewWords(t *testing.T) {
	p := &proc{log: filepath.Join(t.TempDir(), "x.log")}
	long := strings.Repeat("é", 500)
	for text, want := range map[string]string{
		"old\nolder\nfirst\n" + long + "\nlast\n":            "first | " + long[:160] + "... | last",
		"why\n{\"kind\": \"ready\"}\n{\"kind\": \"step\"}\n": "why",
		"{\"kind\": \"ready\"}\n":                            `{"kind": "ready"}`,
	} {
		if err := os.WriteFile(p.log, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if want = "the end of " + p.log + ": " + want; p.logTail() != want {
			t.Errorf("got %q, want %q", p.logTail(), want)
		}
	}
}
