package proxy

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// paced is an upstream that sends its header at once and each part when it is
// asked for.
func paced(media string, parts []string, next <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", media)
		w.(http.Flusher).Flush()
		for _, p := range parts {
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
			io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
	}
}

// inSteps sends a request to an upstream whose next part leaves when the client
// has the one before: anything held back would hang it. It answers with the
// record, what the observer was told, and the times at which the client had each
// part.
func inSteps(t *testing.T, path, body, media string, parts []string, opts ...rigOption) (Record, *watcher, []time.Time) {
	t.Helper()
	next := make(chan struct{})
	r := newRig(t, paced(media, parts, next), opts...)
	r.client.Timeout = wait
	res := r.post(path, body)
	var had []time.Time
	for i, p := range parts {
		select {
		case next <- struct{}{}:
		case <-time.After(wait):
			t.Fatalf("%s: part %d: the upstream had ended", path, i)
		}
		got := make([]byte, len(p))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != p {
			t.Fatalf("%s: part %d: got %q, %v; want %q", path, i, got, err, p)
		}
		had = append(had, time.Now())
	}
	if rest := text(t, res); rest != "" {
		t.Errorf("%s: got %q after the last part, want nothing", path, rest)
	}
	rec := r.seen.record(t)
	r.idle()
	r.seen.noMore(t)
	return rec, r.seen, had
}
