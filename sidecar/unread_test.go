package sidecar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/size"
)

// spoiler relays to the emulator; while it is bad, the emulator's own page is a web
// page instead.
type spoiler struct {
	bad    atomic.Bool
	spoilt atomic.Int64
}

func (s *spoiler) before(t *testing.T, engine string) string {
	t.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	relay := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/lull/state" && s.bad.Load() {
			s.spoilt.Add(1)
			_, _ = io.WriteString(w, "<html>Sign in</html>")
			return
		}
		// Else an answer that begins before the transport has seen the request's end
		// closes the body under it, and it breaks the answer.
		_ = http.NewResponseController(w).EnableFullDuplex()
		relay.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestEngineThatCannotBeReadStopsGrowthAndNoRequest(t *testing.T) {
	var s spoiler
	r := newRig(t, func(f *config.File) { f.Engines[0].URL = s.before(t, f.Engines[0].URL) })
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(500 * size.MiB)
	s.bad.Store(true)
	r.until("readyz names the engine and what it answered, and is ready: it serves", func() bool {
		status, body := r.readyz()
		return status == http.StatusOK && strings.Contains(body, "engine main: ") && strings.Contains(body, "/lull/state: got ") && strings.Contains(body, "want JSON")
	})
	r.mustAllBeWhole(r.burst(12, 400, 60)) // training gives memory back for them as ever
	if held := r.held(); held >= 500*size.MiB {
		t.Errorf("training holds %v after a burst, want less: bounds must go on rising", held)
	}
	r.until("no request is left", func() bool { return r.state().State.Requests == 0 })
	low, seen := r.budget(), s.spoilt.Load()
	r.until("an idle engine was read four times more in vain", func() bool { return s.spoilt.Load() >= seen+4 }) // one a second: growth takes two
	if got := r.budget(); got > low {
		t.Errorf("the budget rose from %v to %v beside an engine that cannot be read", low, got)
	}
	if st := r.state(); st.Ledger.Engines[0].Down {
		t.Error("counts as down, though it serves")
	}
	s.bad.Store(false)
	r.untilHeld(500 * size.MiB)
}

// budget is the trainer's.
func (r *rig) budget() size.Bytes {
	for _, t := range r.state().Ledger.Trainers {
		if !t.Gone {
			return t.Budget
		}
	}
	return 0
}
