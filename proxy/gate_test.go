package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestGateSeesEachInterpretedRequestOnce(t *testing.T) {
	asked := make(chan Request, 9)
	gate := gateFunc(func(_ context.Context, r Request) Verdict {
		asked <- r
		return Verdict{Forward: true, Outcome: OutcomeHeldForwarded}
	})
	r := newRig(t, stream(doneChunk), withGate(gate))
	for _, path := range []string{
		chatPath, "/v1/completions", "/v1/responses", "/v1/messages", "/v2/models/m/generate",
		"/v2/models/m/versions/1/generate_stream", "/v2/models/m/infer",
	} {
		text(t, r.post(path, `{"model":"m","max_tokens":3,"n":2}`))
		rec := r.seen.record(t)
		if rec.Outcome != OutcomeHeldForwarded || rec.Path != path {
			t.Errorf("%s: got %+v, want held_forwarded", path, rec)
		}
		got := <-asked
		if got.ID != rec.ID || got.Path != path || got.Engine != "fake" || got.ArrivedAt != rec.Arrived || got.Sequences < 1 {
			t.Errorf("%s: gate got %+v", path, got)
		}
	}
	if len(asked) != 0 {
		t.Errorf("gate: asked %d times more", len(asked))
	}
}

func TestRefusalsAreShapedAsOpenAIs(t *testing.T) {
	for _, c := range []struct {
		name       string
		v          Verdict
		status     int
		retryAfter string
		body       string
	}{
		{"deadline", Verdict{Outcome: OutcomeRejectedDeadline, RetryAfter: 1500 * time.Millisecond}, 503, "2",
			`{"error":{"message":"lull: request refused (rejected_deadline); try again later","type":"server_error","param":null,"code":"lull_rejected_deadline"}}`},
		{"capacity", Verdict{Outcome: OutcomeRejectedCapacity}, 429, "1",
			`{"error":{"message":"lull: request refused (rejected_capacity); try again later","type":"rate_limit_error","param":null,"code":"lull_rejected_capacity"}}`},
		{"own words", Verdict{Outcome: "rejected_floor", Status: 429, Code: "c", Message: "m", RetryAfter: time.Minute}, 429, "60",
			`{"error":{"message":"m","type":"rate_limit_error","param":null,"code":"c"}}`},
		{"empty", Verdict{}, 503, "1",
			`{"error":{"message":"lull: request refused (rejected_deadline); try again later","type":"server_error","param":null,"code":"lull_rejected_deadline"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(http.ResponseWriter, *http.Request) { t.Error("upstream: got a refused request") },
				withGate(gateFunc(func(context.Context, Request) Verdict { return c.v })))
			res := r.post(chatPath, `{}`)
			if body := text(t, res); res.StatusCode != c.status || res.Header.Get("Retry-After") != c.retryAfter || body != c.body+"\n" {
				t.Errorf("got %d, Retry-After %q, %s", res.StatusCode, res.Header.Get("Retry-After"), body)
			}
			rec := r.seen.record(t)
			if rec.Outcome != rec.Admission || !strings.HasPrefix(rec.Outcome, "rejected_") || rec.Status != c.status || !rec.Failed() {
				t.Errorf("record: got %+v, want the refusal's outcome", rec)
			}
			r.idle()
		})
	}
}

func TestRefusalsOfMessagesAreShapedAsAnthropics(t *testing.T) {
	for status, kind := range map[int]string{429: "rate_limit_error", 503: "overloaded_error"} {
		r := newRig(t, echo, withGate(gateFunc(func(context.Context, Request) Verdict {
			return Verdict{Outcome: "rejected_x", Status: status, Code: "c", Message: "m"}
		})))
		res := r.post("/v1/messages", `{}`)
		want := `{"type":"error","error":{"type":"` + kind + `","message":"m (c)"},"request_id":"` + res.Header.Get("X-Request-Id") + `"}` + "\n"
		if got := text(t, res); res.StatusCode != status || got != want || res.Header.Get("Retry-After") != "1" {
			t.Errorf("got %d %s, want %s", res.StatusCode, got, want)
		}
	}
}

func TestHeldTimeIsPartOfTTFTAndShownAlone(t *testing.T) {
	const held = 80 * time.Millisecond
	r := newRig(t, stream(chunk("a"), doneChunk), withGate(holds(held)))
	text(t, r.post(chatPath, `{}`))
	rec := r.seen.record(t)
	ttft, ok := rec.TTFT()
	if !ok || rec.Held < held || ttft < rec.Held {
		t.Errorf("got held %v, TTFT %v; want held inside TTFT", rec.Held, ttft)
	}
}

func TestGateThatPanicsLetsTheRequestGo(t *testing.T) {
	r := newRig(t, stream(doneChunk), withGate(gateFunc(func(context.Context, Request) Verdict { panic("gate") })))
	if got := text(t, r.post(chatPath, `{}`)); got != doneChunk {
		t.Errorf("answer: got %q", got)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeForwardedUnconfirmed || r.proxy.Stats().Faults != 1 {
		t.Errorf("got %s with %d faults, want forwarded_unconfirmed and 1", rec.Outcome, r.proxy.Stats().Faults)
	}
}

// TestTimesAreTheInjectedClocks has a gate that moves a clock of the test's own.
func TestTimesAreTheInjectedClocks(t *testing.T) {
	now := time.Unix(100, 0)
	cfg := DefaultConfig()
	cfg.Now = func() time.Time { return now }
	w := newWatcher()
	p := New(cfg, gateFunc(func(context.Context, Request) Verdict {
		now = now.Add(30 * time.Millisecond)
		return Verdict{}
	}), w)
	req, _ := http.NewRequest("POST", chatPath, strings.NewReader("{}"))
	p.ServeHTTP(&plainWriter{h: http.Header{}}, req)
	if rec := w.record(t); rec.Held != 30*time.Millisecond || rec.Arrived != time.Unix(100, 0) || rec.End != now {
		t.Errorf("got held %v, arrived %v, end %v; want the clock's 30ms", rec.Held, rec.Arrived, rec.End)
	}
}

// plainWriter is a ResponseWriter without any optional interface.
type plainWriter struct {
	h http.Header
	strings.Builder
	status int
}

func (w *plainWriter) Header() http.Header  { return w.h }
func (w *plainWriter) WriteHeader(code int) { w.status = code }

func TestWriterWithoutFlushIsEnough(t *testing.T) {
	r := newRig(t, stream(chunk("a"), doneChunk))
	w := &plainWriter{h: http.Header{}}
	req, _ := http.NewRequest("POST", chatPath, io.NopCloser(strings.NewReader("{}")))
	r.proxy.ServeHTTP(w, req)
	if w.status != 200 || w.String() != chunk("a")+doneChunk {
		t.Errorf("got %d %q", w.status, w.String())
	}
}
