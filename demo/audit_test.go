package demo

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// holder is a child whose memory a test moves.
type holder struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func startHolder(t *testing.T) *holder {
	t.Helper()
	h := &holder{cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), roleEnv+"=memory")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd.Stdin, h.in = read, write
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	h.out = bufio.NewScanner(out)
	h.out.Scan() // ready
	t.Cleanup(func() { _ = h.in.Close(); _ = h.cmd.Wait() })
	return h
}

// hold makes the child hold n MiB and returns when it does.
func (h *holder) hold(t *testing.T, n int) {
	t.Helper()
	fmt.Fprintln(h.in, n)
	if !h.out.Scan() || h.out.Text() != fmt.Sprintf("held %d", n) {
		t.Fatalf("child: got %q, want held %d", h.out.Text(), n)
	}
}

func TestAuditorSeesMemoryComeAndGoAndCountsViolations(t *testing.T) {
	engine, trainer := startHolder(t), startHolder(t)
	baseline := func(h *holder) size.Bytes {
		m, err := openMem(h.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		b, err := m.read()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	d := yardstick{Capacity: 100 * size.MiB, EngineBaseline: baseline(engine), TrainerBaseline: baseline(trainer)}
	a, err := newAuditor([]int{engine.cmd.Process.Pid}, trainer.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { a.run(ctx) })
	engine.hold(t, 40)
	trainer.hold(t, 40)
	waitSamples(t, a, 20)
	within, _ := a.taken()
	trainer.hold(t, 80) // 120 of 100 MiB
	waitSamples(t, a, 20)
	trainer.hold(t, 0)
	waitSamples(t, a, 20)
	cancel()
	wg.Wait()
	a.close()
	if v := judge(within, 0, d, nil); len(v.Violations) != 0 || v.MaxDevice < 78*size.MiB || v.MaxDevice > 86*size.MiB {
		t.Errorf("40 + 40 of 100 MiB: got %d violations and at most %v, want none and about 80 MiB", len(v.Violations), v.MaxDevice)
	}
	all, lost := a.taken()
	v := judge(all, lost, d, nil)
	if len(v.Violations) == 0 || v.MaxDevice < 118*size.MiB || v.Violations[0].What != "device" {
		t.Errorf("40 + 80 of 100 MiB: got %d violations and at most %v, want some and about 120 MiB", len(v.Violations), v.MaxDevice)
	}
	if last := v.Samples[len(v.Samples)-1]; last.Trainer > 6*size.MiB {
		t.Errorf("after the trainer let go: got %v, want about 0", last.Trainer)
	}
	if lost != 0 {
		t.Errorf("lost reads: got %d, want 0", lost)
	}
}

// waitSamples waits until the auditor has taken n more.
func waitSamples(t *testing.T, a *auditor, n int) {
	t.Helper()
	before, _ := a.taken()
	deadline := time.Now().Add(time.Minute)
	for {
		if now, _ := a.taken(); len(now) >= len(before)+n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the auditor takes no samples")
		}
		time.Sleep(time.Millisecond) // it reads the real kernel at a real rate: there is no event to wait for
	}
}

func TestAuditorCountsReadsOfAnEndedProcessAsLost(t *testing.T) {
	engine := startHolder(t)
	a, err := newAuditor([]int{engine.cmd.Process.Pid}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	a.sample()
	_ = engine.in.Close()
	_ = engine.cmd.Wait()
	a.sample()
	if samples, lost := a.taken(); len(samples) != 1 || lost != 1 {
		t.Errorf("got %d samples and %d lost, want 1 and 1", len(samples), lost)
	}
	if _, err := newAuditor([]int{engine.cmd.Process.Pid}, 0); err == nil || !strings.Contains(err.Error(), "audit: open status of pid") {
		t.Errorf("open after the end: got %v, want the pid and what was opened", err)
	}
}

func TestParseRSSErrorsSayWhatWasSeen(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"ended":   {"Name:\tx\nState:\tZ (zombie)\n", `no line "RssAnon:", want one`},
		"unit":    {"x\nRssAnon:\t 12 MB\nRssShmem:\t 1 kB\n", `RssAnon: got "12 MB", want a number and kB`},
		"number":  {"x\nRssAnon:\t 12 kB\nRssShmem:\t no kB\n", `RssShmem: got "no", want a number`},
		"nothing": {"", `no line "RssAnon:"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseRSS([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to contain %q", err, tc.want)
			}
		})
	}
	got, err := parseRSS([]byte("Name:\tx\nRssAnon:\t    12 kB\nRssFile:\t 99 kB\nRssShmem:\t 4 kB\n"))
	if err != nil || got != 16*size.KiB {
		t.Errorf("got %v, %v, want 16 KiB", got, err)
	}
}

func FuzzParseRSS(f *testing.F) {
	f.Add([]byte("Name:\tx\nRssAnon:\t    12 kB\nRssShmem:\t 4 kB\n"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = parseRSS(text) })
}
