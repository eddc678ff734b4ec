package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// speakHTTP2 makes the rig's client speak HTTP/2 without TLS.
func (r *rig) speakHTTP2() {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{DisableCompression: true, Protocols: &p}
	r.client = &http.Client{Transport: tr}
	r.t.Cleanup(tr.CloseIdleConnections)
}

func TestHTTP2ClientsGetTheirStreamAsItComes(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		next := make(chan struct{})
		pieces := []string{roleChunk, chunk("a"), chunk("渐"), doneChunk}
		r := newRig(t, paced(sseMedia, pieces, next))
		r.speakHTTP2()
		res := r.post(path, `{"stream":true}`) // the header comes alone
		if res.ProtoMajor != 2 || res.Header.Get("Connection") != "" {
			t.Errorf("got %s and %v, want HTTP/2 without hop-by-hop fields", res.Proto, res.Header)
		}
		for _, p := range pieces {
			next <- struct{}{}
			got := make([]byte, len(p))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != p {
				t.Fatalf("got %q, %v; want %q", got, err, p)
			}
		}
		text(t, res)
		if path == chatPath {
			if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded || rec.Contents != 2 {
				t.Errorf("got %+v, want two contents", rec)
			}
		}
		r.idle()
	})
}

func TestHTTP2StreamOfABrokenAnswerIsReset(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			parts(w, nil, chunk("a"))
			panic(http.ErrAbortHandler)
		})
		r.speakHTTP2()
		b, err := io.ReadAll(r.post(path, `{}`).Body)
		if err == nil || !strings.Contains(err.Error(), "stream error") || string(b) != chunk("a") {
			t.Errorf("got %q and %v, want one event and a reset stream", b, err)
		}
		if path == chatPath {
			if rec := r.seen.record(t); rec.Outcome != OutcomeBrokenStream {
				t.Errorf("outcome: got %s, want broken_stream", rec.Outcome)
			}
		}
		r.idle()
	})
}

func TestHTTP2ClientThatResetsItsStreamCancelsTheUpstream(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		r := newRig(t, untilGone(called, gone, func(w http.ResponseWriter) { parts(w, nil, chunk("a")) }))
		r.speakHTTP2()
		res := r.post(path, `{}`)
		within(t, "upstream called", called)
		res.Body.Close()
		within(t, "upstream cancelled", gone)
		if path == chatPath {
			if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
				t.Errorf("outcome: got %s, want client_gone", rec.Outcome)
			}
		}
		r.idle()
	})
}

func TestHTTP2UploadThatStandsStillIsEnded(t *testing.T) {
	r := newRig(t, echo, withConfig(func(c *Config) { c.IdleLimit = 50 * time.Millisecond }))
	r.speakHTTP2()
	body, never := io.Pipe()
	defer never.Close()
	res, err := r.client.Post(r.server.URL+chatPath, "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(got), errUploadIdle.Error()) {
		t.Errorf("got %d %s, want 408 and why", res.StatusCode, got)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeRequestUnreadable {
		t.Errorf("outcome: got %s, want request_unreadable", rec.Outcome)
	}
}
