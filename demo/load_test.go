package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNextSendLooksOnlyAtTheSchedule(t *testing.T) {
	schedule := []time.Duration{0, 10 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond}
	for _, tc := range []struct {
		sent    int
		elapsed time.Duration
		wait    time.Duration
		done    bool
	}{
		{0, 0, 0, false},
		{1, 4 * time.Millisecond, 6 * time.Millisecond, false},
		{2, 12 * time.Millisecond, 0, false}, // late: at once
		{3, 20 * time.Millisecond, 30 * time.Millisecond, false},
		{4, 60 * time.Millisecond, 0, true},
	} {
		wait, done := nextSend(schedule, tc.sent, tc.elapsed)
		if wait != tc.wait || done != tc.done {
			t.Errorf("sent %d at %v: got %v %v, want %v %v", tc.sent, tc.elapsed, wait, done, tc.wait, tc.done)
		}
	}
}

// stalled is a server that never answers.
type stalled struct{}

func (stalled) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestReplayKeepsItsScheduleWhenTheServerStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient("http://stalled", "m", 8, "")
		c.http.Transport = stalled{}
		var reqs []Request
		for i := range 50 {
			reqs = append(reqs, Request{ID: fmt.Sprint(i), At: time.Duration(i*i) * time.Millisecond, Prompt: "a", OutputTokens: 1})
		}
		var p progress
		start := time.Now()
		results := replay(t.Context(), c, reqs, start, &p)
		for i, r := range results {
			if got := r.Sent.Sub(start); got != reqs[i].At {
				t.Errorf("request %d: sent at %v, want %v", i, got, reqs[i].At)
			}
			if !errors.Is(r.Err, context.Canceled) && !errors.Is(r.Err, context.DeadlineExceeded) {
				t.Errorf("request %d: got %v, want it cut off", i, r.Err)
			}
		}
		if got, want := time.Since(start), reqs[49].At+drainLimit; got != want {
			t.Errorf("ended after %v, want %v", got, want)
		}
		if len(results) != 50 || p.failed.Load() != 50 {
			t.Errorf("got %d results, %d failed, want 50 and 50", len(results), p.failed.Load())
		}
	})
}

func TestReplayStopsSendingWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
		defer cancel()
		c := newClient("http://stalled", "m", 8, "")
		c.http.Transport = stalled{}
		reqs := []Request{{At: 0}, {At: 20 * time.Millisecond}, {At: 40 * time.Millisecond}}
		var p progress
		if got := len(replay(ctx, c, reqs, time.Now(), &p)); got != 2 {
			t.Errorf("sent %d, want 2", got)
		}
	})
}

// serve answers every request with the same status and body.
func serve(t *testing.T, status int, body string) *client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	c := newClient(s.URL, "m", 8, "")
	t.Cleanup(func() { c.close(); s.Close() })
	return c
}

const role = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"

func content(text string) string {
	return fmt.Sprintf(`data: {"choices":[{"delta":{"content":%q}}]}`, text) + "\n\n"
}

func TestClientCountsContentChunksOnly(t *testing.T) {
	usage := `data: {"choices":[],"usage":{"completion_tokens":2}}` + "\n\n"
	c := serve(t, 200, ": ping\n\n"+role+content("a")+content("b")+usage+"data: [DONE]\n\n")
	var seen []string
	c.observe = func(kind, id string, _ time.Time) { seen = append(seen, kind+" "+id) }
	res := c.send(t.Context(), Request{ID: "r1", Prompt: "x", OutputTokens: 2}, time.Now(), false)
	if res.Err != nil || len(res.Tokens) != 2 || len(res.Gaps()) != 1 {
		t.Fatalf("got %v and %d tokens, want no error and 2", res.Err, len(res.Tokens))
	}
	if ttft, ok := res.TTFT(); !ok || ttft <= 0 {
		t.Errorf("TTFT: got %v %v, want more than 0", ttft, ok)
	}
	if got := strings.Join(seen, ", "); got != "arrive r1, first r1, token r1" {
		t.Errorf("events: got %s", got)
	}
}

func TestClientErrorsSayWhatWasSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		status     int
		body, want string
	}{
		"status":       {503, `{"error":"full"}`, `request r1: status 503, want 200: {"error":"full"}`},
		"cut":          {200, role + content("a"), "request r1: stream ended after 1 chunks without [DONE]"},
		"error event":  {200, content("a") + `data: {"error":{"message":"gone"}}` + "\n\n", `after 1 chunks: error event: {"message":"gone"}`},
		"no JSON":      {200, "data: oops\n\n", `after 0 chunks: event "oops": `},
		"no content":   {200, role + "data: [DONE]\n\n", "request r1: answer without content"},
		"line too big": {200, "data: " + strings.Repeat("x", 70<<10) + "\n\n", "read stream: bufio: buffer full"},
	} {
		t.Run(name, func(t *testing.T) {
			res := serve(t, tc.status, tc.body).send(t.Context(), Request{ID: "r1"}, time.Now(), false)
			if res.Err == nil || !strings.Contains(res.Err.Error(), tc.want) {
				t.Errorf("got %v, want it to contain %q", res.Err, tc.want)
			}
		})
	}
}

func TestObjectivesAreFourTimesTheIdleMeans(t *testing.T) {
	c := serve(t, 200, role+content("a")+content("b")+content("c")+"data: [DONE]\n\n")
	requests := map[string]int{}
	c.observe = func(kind, _ string, _ time.Time) { requests[kind]++ }
	reqs := make([]Request, 100)
	for i := range reqs {
		reqs[i] = Request{ID: fmt.Sprint(i), OutputTokens: 10}
	}
	slo, err := measureObjectives(t.Context(), c, reqs)
	if err != nil || slo.TTFT <= 0 || slo.TBT <= 0 {
		t.Fatalf("got %+v, %v, want two durations", slo, err)
	}
	if requests["arrive"] != 45 || requests["first"] != 45 || requests["token"] != 10 {
		t.Errorf("got %v, want 45 requests, 40 of them left after the first token", requests)
	}
}

func TestObjectivesThatCannotBeMeasuredAreAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		status     int
		body, want string
	}{
		"refused":   {500, "no", "demo: measure objectives: request : status 500, want 200: no; no phase is run without them"},
		"one token": {200, content("a") + "data: [DONE]\n\n", "without a gap between chunks"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := measureObjectives(t.Context(), serve(t, tc.status, tc.body), []Request{{OutputTokens: 9}})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

func FuzzReadStream(f *testing.F) {
	f.Add(role+content("a")+"data: [DONE]\n\n", 3)
	f.Fuzz(func(_ *testing.T, text string, limit int) {
		n := 0
		_, _ = readStream(strings.NewReader(text), func([]int) bool { n++; return n < limit })
	})
}
