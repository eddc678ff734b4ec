package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
)

func slice(t *testing.T, window time.Duration, limit int, seed uint64) []Request {
	t.Helper()
	rows, err := traces.AzureConversation()
	if err != nil {
		t.Fatal(err)
	}
	reqs, err := Workload(rows, DefaultSizing(), window, limit, seed)
	if err != nil {
		t.Fatal(err)
	}
	return reqs
}

func TestWorkloadHasTheScaleOfTheDemo(t *testing.T) {
	reqs := slice(t, 25*time.Second, 0, 1)
	if len(reqs) < 240 || len(reqs) > 260 {
		t.Errorf("requests in 25 s: got %d, want about 250", len(reqs))
	}
	prompt, output := 0, 0
	for _, r := range reqs {
		if got := len(strings.Fields(r.Prompt)); got != r.PromptTokens {
			t.Fatalf("%s: prompt of %d words, want %d", r.ID, got, r.PromptTokens)
		}
		prompt, output = prompt+r.PromptTokens, output+r.OutputTokens
	}
	if p, o := prompt/len(reqs), output/len(reqs); p < 235 || p > 250 || o < 58 || o > 65 {
		t.Errorf("mean prompt and answer: got %d and %d tokens, want about 241 and 61", p, o)
	}
}

func TestWorkloadIsTheSameForTheSameSeed(t *testing.T) {
	a, b, other := slice(t, 5*time.Second, 0, 7), slice(t, 9*time.Second, 20, 7), slice(t, 5*time.Second, 0, 8)
	if len(b) != 20 {
		t.Fatalf("limit: got %d requests, want 20", len(b))
	}
	for i := range b {
		if a[i] != b[i] {
			t.Errorf("request %d differs with another window and limit", i)
		}
	}
	if a[0].Prompt == other[0].Prompt {
		t.Error("another seed gives the same prompt")
	}
}

func TestWorkloadWithoutRequestsIsAnError(t *testing.T) {
	_, err := Workload([]traces.Row{{At: time.Hour}}, DefaultSizing(), time.Second, 0, 1)
	if err == nil || !strings.Contains(err.Error(), "demo: workload: no row of 1 arrives before 1s") {
		t.Errorf("got %v", err)
	}
}

func TestSpreadPicksEvenly(t *testing.T) {
	reqs := make([]Request, 10)
	for i := range reqs {
		reqs[i].At = time.Duration(i)
	}
	picked := spread(reqs, 4)
	if len(picked) != 4 || picked[0].At != 0 || picked[1].At != 2 || picked[3].At != 7 {
		t.Errorf("got %v, want rows 0, 2, 5, 7", picked)
	}
	if got := len(spread(reqs, 20)); got != 10 {
		t.Errorf("more than there are: got %d, want 10", got)
	}
}

func TestOptionsErrorsNameTheFlag(t *testing.T) {
	ok := DefaultOptions()
	ok.Root = ".."
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"demo: --seconds: got 0.5, want 1 to 600, or 0 for the engine's":  func(o *Options) { o.Window = time.Second / 2 },
		`demo: --study: got "x", want memory or isolation`:                func(o *Options) { o.Study = "x" },
		"demo: --study: got isolation with --engine emulator, want vllm":  func(o *Options) { o.Study = StudyIsolation },
		"demo: --requests: got -1, want 0 (all) or more":                  func(o *Options) { o.Requests = -1 },
		"demo: --trainer-nice: got 20, want 0 to 19":                      func(o *Options) { o.TrainerNice = 20 },
		`demo: --engine: got "tgi", want emulator or vllm`:                func(o *Options) { o.Engine = "tgi" },
		`demo: --out: got "", want a folder`:                              func(o *Options) { o.Out = "" },
		`demo: --phases: got "all", want some of inference-only, static-`: func(o *Options) { o.Phases = []string{"all"} },
		"run lull demo in the repository's root or give --root":           func(o *Options) { o.Root = "/nowhere" },
	} {
		o := ok
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to contain %q", err, want)
		}
	}
}

func TestTrainerGetsTheLastCoreForItself(t *testing.T) {
	if p := placement(StudyMemory, []int{0, 1}, 10); p.Trainer[0] != 1 || p.Rest[0] != 0 || !strings.Contains(p.String(), "trainer on core 1 at nice 10") {
		t.Errorf("two cores: got %+v, %s", p, p)
	}
	if p := placement(StudyIsolation, []int{0, 1}, 0); p.Trainer[0] != 1 || p.Server[0] != 1 || p.Rest[0] != 0 || !strings.Contains(p.String(), "the server and the trainer (nice 0, one thread) share core 1, everything else on core 0") {
		t.Errorf("isolation: got %+v, %s, want server and trainer on one core", p, p)
	}
	if p := placement(StudyMemory, []int{4, 5, 9}, 10); p.Trainer[0] != 9 || len(p.Rest) != 2 {
		t.Errorf("three cores: got %+v", p)
	}
	if p := placement(StudyMemory, []int{3}, 10); p.Trainer != nil || p.Rest != nil || !strings.Contains(p.String(), "nothing is pinned") {
		t.Errorf("one core: got %+v, %s", p, p)
	}
}

func TestWarmUpTakesTheEndOfTheTraceAndOtherPrompts(t *testing.T) {
	rows, err := traces.AzureConversation()
	if err != nil {
		t.Fatal(err)
	}
	warm, err := warmWorkload(rows, DefaultSizing(), 1)
	if err != nil || len(warm) < 10 {
		t.Fatalf("%d requests, %v", len(warm), err)
	}
	reqs := slice(t, 20*time.Second, 0, 1)
	for i, w := range warm {
		if w.At < 0 || w.At >= warmUp || i > 0 && w.At < warm[i-1].At {
			t.Errorf("%s is sent at %v", w.ID, w.At)
		}
		if w.Prompt == reqs[0].Prompt || !strings.HasPrefix(w.ID, "warm") {
			t.Errorf("%s is one of the measured requests", w.ID)
		}
	}
}
