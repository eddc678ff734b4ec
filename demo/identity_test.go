package demo

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
)

func answered(id string, ids ...int) Result { return Result{ID: id, IDs: ids} }

func TestAnswersAreComparedByRequestAndOnlyWholeOnes(t *testing.T) {
	alone := &phaseRun{Phase: Phase{Name: InferenceOnly}, Results: []Result{
		answered("a", 1, 2, 3), answered("b", 4), answered("c", 5), {ID: "d", IDs: []int{9}, Err: errors.New("cut")},
	}}
	lull := &phaseRun{Phase: Phase{Name: Lull}, Results: []Result{
		answered("a", 1, 2, 3), answered("b", 7), {ID: "c", Err: errors.New("cut")}, answered("d", 9), answered("e", 1),
	}}
	got := compareAnswers([]*phaseRun{alone, lull})
	if got == nil || *got != (TokenIdentity{Compared: 2, Differ: 1, Tokens: 4}) {
		t.Errorf("got %+v, want a and b compared, b different", got)
	}
	if got := compareAnswers([]*phaseRun{alone}); got != nil {
		t.Errorf("without the phase lull: got %+v, want nil", got)
	}
	if got := compareAnswers([]*phaseRun{{Phase: Phase{Name: InferenceOnly}, Results: []Result{{ID: "a"}}}, lull}); got != nil {
		t.Errorf("without token ids: got %+v, want nil", got)
	}
}

func TestBarsOfARealServerAreMemoryAndAnswers(t *testing.T) {
	s := Summary{
		Engine: EngineVLLM, Phases: []PhaseSummary{{Name: Lull}},
		Handover:      HandoverSummary{ShrinksFreed: 31, Grows: 29},
		TokenIdentity: &TokenIdentity{Compared: 100, Differ: 1, Tokens: 4000},
	}
	var lines []string
	for _, b := range bars(s) {
		lines = append(lines, b.String())
	}
	want := []string{
		"  met     shrinks that freed memory: 31 (want ≥ 30)",
		"  MISSED  grows: 29 (want ≥ 30), short by 1",
		"  met     audit violations: 0 (want 0)",
		"  MISSED  answers token-identical to inference only: 99 of 100 (4000 tokens) (want all), short by 1",
		"  met     requests that failed: 0 (want 0)",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	s.TokenIdentity = nil
	if b := bars(s)[3]; b.Skipped != InferenceOnly {
		t.Errorf("without answers to compare: got %+v, want it skipped", b)
	}
}

func TestARealServerIsToldTheLengthAndTheEmulatorToo(t *testing.T) {
	r := Request{ID: "r", Prompt: "hello", OutputTokens: 7}
	for end, want := range map[string]string{
		"":  `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":64,"stream":true,"stream_options":{"include_usage":true},"emulate":{"output_tokens":7}}`,
		"2": `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":64,"stream":true,"stream_options":{"include_usage":true},"temperature":0,"min_tokens":7,"logit_bias":{"2":100},"return_token_ids":true}`,
	} {
		got, err := json.Marshal(newClient("http://x", "m", 64, end).body(r))
		if err != nil || string(got) != want {
			t.Errorf("end token %q: got %s, %v\nwant %s", end, got, err, want)
		}
	}
}

func TestTokenIDsOfAStreamAreKept(t *testing.T) {
	stream := `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n" +
		`data: {"choices":[{"delta":{"content":""},"token_ids":[5,6]}]}` + "\n\n" +
		`data: {"choices":[{"delta":{"content":"x"},"token_ids":[7]}]}` + "\n\n" +
		`data: {"choices":[],"usage":{}}` + "\n\n" + "data: [DONE]\n\n"
	var got []int
	events := 0
	done, err := readStream(strings.NewReader(stream), func(ids []int) bool { events++; got = append(got, ids...); return true })
	if err != nil || !done || events != 2 || len(got) != 3 || got[2] != 7 {
		t.Errorf("got %v in %d events, done %v, %v; want 5 6 7 in two", got, events, done, err)
	}
}

func TestByteTokensGiveAPromptOfThatManyBytes(t *testing.T) {
	s := vllmSizing()
	rows, err := traces.AzureConversation()
	if err != nil {
		t.Fatal(err)
	}
	reqs, err := Workload(rows, s, 20*time.Second, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reqs {
		if len(r.Prompt) != r.PromptTokens || r.PromptTokens > s.MaxPrompt || r.PromptTokens+s.MaxTokens+64 > s.MaxModelLen {
			t.Errorf("%s: got %d bytes for %d tokens, want as many, within the model's length", r.ID, len(r.Prompt), r.PromptTokens)
		}
	}
}
