package sidecar

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
)

// lone is a sidecar that relays and measures: a fake upstream behind it, and no
// device.
type lone struct {
	t           *testing.T
	file        config.File
	sidecar     *Sidecar
	base, admin string
	client      *http.Client
	logs        *syncBuffer
	term        context.CancelFunc // what SIGTERM does
	ended       chan error
}

// newLone starts one. prepare may change the file and, before Run, the sidecar.
func newLone(t *testing.T, h http.Handler, change func(*config.File), prepare func(*Sidecar)) *lone {
	t.Helper()
	up := httptest.NewServer(h)
	t.Cleanup(up.Close)
	l := &lone{t: t, file: config.ForUpstream(up.URL), client: &http.Client{Transport: &http.Transport{}}, logs: &syncBuffer{}, ended: make(chan error, 1)}
	l.file.Listen, l.file.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	if change != nil {
		change(&l.file)
	}
	var err error
	if l.sidecar, err = New(l.file, slog.New(slog.NewTextHandler(l.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(l.sidecar)
	}
	ctx, term := context.WithCancel(context.Background())
	l.term = term
	reader, writer := io.Pipe()
	go func() { l.ended <- l.sidecar.Run(ctx, writer); close(l.ended); _ = writer.Close() }() // ends when term is called
	var ready struct{ Listening, Admin string }
	if err := json.NewDecoder(reader).Decode(&ready); err != nil {
		t.Fatalf("ready line: %v; run: %v", err, <-l.ended)
	}
	l.base, l.admin = "http://"+ready.Listening, "http://"+ready.Admin
	t.Cleanup(func() {
		l.client.CloseIdleConnections()
		l.sidecar.Hurry()
		l.end()
		if t.Failed() {
			t.Log(l.logs.String())
		}
	})
	return l
}

// end stops the sidecar as SIGTERM does and waits for its end.
func (l *lone) end() {
	l.t.Helper()
	l.term()
	select {
	case err := <-l.ended: // nil too once it was read
		if err != nil {
			l.t.Errorf("run: %v", err)
		}
	case <-time.After(time.Minute):
		l.t.Fatal("the sidecar has not ended a minute after it was told to")
	}
}

// until waits for what the sidecar will show.
func (l *lone) until(what string, seen func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); !seen(); time.Sleep(2 * time.Millisecond) { // another goroutine's doing
		if time.Now().After(deadline) {
			l.t.Fatalf("not seen in a minute: %s\n%s", what, l.logs.String())
		}
	}
}

// logged waits for a line of the log.
func (l *lone) logged(text string) {
	l.t.Helper()
	l.until("the log says "+text, func() bool { return strings.Contains(l.logs.String(), text) })
}

// call sends a request and reads its answer.
func (l *lone) call(method, url, body string, header http.Header) (int, http.Header, string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := l.client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(text), err
}

func TestExchangingWhatIsServedCostsARequestNoAllocation(t *testing.T) {
	var f front
	served := 0
	f.set(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	if n := testing.AllocsPerRun(100, func() { f.ServeHTTP(nil, nil) }); n != 0 || served == 0 {
		t.Errorf("%v allocations a request, %d served; want none", n, served)
	}
}

const chatPath = "/v1/chat/completions"

// chat asks for an answer and wants it whole.
func (l *lone) chat(want string) {
	l.t.Helper()
	if status, _, got, err := l.call(http.MethodPost, l.base+chatPath, `{"stream":true}`, nil); err != nil || status != 200 || got != want {
		l.t.Errorf("got %d %q, %v; want %q", status, got, err, want)
	}
}

// open begins a stream and returns it when its first event is there.
func (l *lone) open() *http.Response {
	l.t.Helper()
	res, err := l.client.Post(l.base+chatPath, "application/json", strings.NewReader(`{"stream":true}`))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { res.Body.Close() })
	first := make([]byte, len(firstEvent))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != firstEvent {
		l.t.Fatalf("got %q, %v; want the first event", first, err)
	}
	return res
}

const (
	firstEvent = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	lastEvent  = "data: [DONE]\n\n"
)

// slow streams the first event at once and the last when it may; it says when its
// request has ended.
type slow struct {
	may   chan struct{}
	ended chan struct{}
	once  sync.Once
}

func newSlow() *slow { return &slow{may: make(chan struct{}), ended: make(chan struct{}, 8)} }

func (s *slow) finish() { s.once.Do(func() { close(s.may) }) }

func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() { s.ended <- struct{}{} }()
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, firstEvent)
	w.(http.Flusher).Flush()
	select {
	case <-s.may:
		_, _ = io.WriteString(w, lastEvent)
	case <-r.Context().Done():
	}
}
