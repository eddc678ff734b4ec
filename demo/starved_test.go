package demo

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestAChildThatGotNoCPUIsSaidToBeStarved(t *testing.T) {
	p := &proc{name: "trainer", log: "out/trainer.log", cores: []int{1}}
	from := cpuTime{3 * time.Second, time.Second}
	for want, to := range map[string]cpuTime{
		"the trainer got 0.1 s of CPU in 26 s and waited 25.5 s for core 1, which other processes held; free the machine and run again. Log: out/trainer.log": {3100 * time.Millisecond, 26500 * time.Millisecond},
		"trainer: no optimizer step in 26s; nothing in out/trainer.log":                                                                                       {20 * time.Second, 9 * time.Second},
	} {
		if err := p.late("no optimizer step", 26*time.Second, from, to); err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	p.cores = nil
	if err := p.late("x", time.Second, cpuTime{}, cpuTime{waited: time.Second}); !strings.Contains(err.Error(), "waited 1.0 s for a core, which") {
		t.Errorf("not pinned: got %v", err)
	}
}

func TestCPUTimeIsReadFromTheScheduler(t *testing.T) {
	if c, ok := parseSchedstat("1500000000 250000000 7\n"); !ok || c != (cpuTime{1500 * time.Millisecond, 250 * time.Millisecond}) {
		t.Errorf("got %+v %v", c, ok)
	}
	for _, bad := range []string{"", "1", "1 x 2", "x 1 2"} {
		if _, ok := parseSchedstat(bad); ok {
			t.Errorf("%q: got a time, want none", bad)
		}
	}
	_, err := os.Stat("/proc/self/schedstat") // not every kernel keeps it
	if c, ok := readCPUTime(os.Getpid()); ok != (err == nil) || ok && c.ran <= 0 {
		t.Errorf("own process: got %+v %v beside %v, want more than 0", c, ok, err)
	}
	if _, ok := readCPUTime(-1); ok {
		t.Error("no process: got a time, want none")
	}
}

func TestOtherWorkOnTheDemosCoresIsAWarning(t *testing.T) {
	const stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 5000 60 0 7 3 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu12 100 0 0 1 1 0 0 0 0 0\nintr 5\n"
	for want, cores := range map[time.Duration][]int{1600 * time.Millisecond: {0}, 1660 * time.Millisecond: {0, 1}, time.Second: {12}} {
		if got, ok := coresUsed(stat, cores); !ok || got != want {
			t.Errorf("cores %v: got %v %v, want %v", cores, got, ok, want)
		}
	}
	for text, cores := range map[string][]int{stat: {3}, "": {0}, "cpu0 a b c d e f g h i j\n": {0}} {
		if got, ok := coresUsed(text, cores); ok {
			t.Errorf("%q: got %v, want nothing", text, got)
		}
	}
	if got := busy(1900*time.Millisecond, 2*time.Second, 2); got != "in the 2 s before the demo other processes used 0.9 of its 2 cores: latencies and training speed are worse and noisier than on a quiet machine" {
		t.Errorf("got %q", got)
	}
	for _, quiet := range []string{busy(500*time.Millisecond, 2*time.Second, 2), busy(-time.Millisecond, 2*time.Second, 1), busy(0, 0, 0)} {
		if quiet != "" {
			t.Errorf("a quiet machine: got %q, want nothing", quiet)
		}
	}
}

// TestTheTrainersNiceValueIsTheOneThatItHas: without a wish it inherits the demo's.
func TestTheTrainersNiceValueIsTheOneThatItHas(t *testing.T) {
	stat, err := os.ReadFile("/proc/thread-self/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if got, want := fmt.Sprint(ownNice()), strings.Fields(rest)[16]; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
