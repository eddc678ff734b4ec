package proxybench

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/lull-project/lull/proxy"
)

// The arms of a run, in the order of its tables.
const (
	armDirect = "direct"
	armBare   = "bare"
	armLull   = "lull"
)

var armNames = []string{armDirect, armBare, armLull}

// armBlind is Lull relaying answers that it cannot read, since they are encoded:
// what it takes less than armLull is the tap.
const (
	armBlind      = "lull, unread"
	blindEncoding = "bench"
)

const path = "/v1/chat/completions"

func (r role) handler(o *open) (http.Handler, error) {
	switch r.Name {
	case armDirect:
		return upstream{events: r.Events, gap: r.Gap}, nil
	case armBare:
		return bareProxy(r.Upstream)
	case armLull:
		return lullProxy(r.Upstream, o), nil
	}
	return nil, fmt.Errorf("role: got %q, want one of %v", r.Name, armNames)
}

// upstream streams events that carry the time at which each was written.
type upstream struct {
	events int
	gap    time.Duration
}

const (
	eventHead = `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":"sent_ns=`
	eventTail = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	modelList = `{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}`
)

func (u upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet { // a gateway asks for health or models
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, modelList)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	u, encoding, err := u.asked(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if encoding != "" {
		w.Header().Set("Content-Encoding", encoding)
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	rc := http.NewResponseController(w)
	buf := make([]byte, 0, 512)
	next := time.Now()
	for range u.events {
		if u.gap > 0 {
			time.Sleep(time.Until(next))
		}
		next = next.Add(u.gap)
		buf = append(buf[:0], eventHead...)
		buf = strconv.AppendInt(buf, time.Now().UnixNano(), 10)
		buf = append(buf, eventTail...)
		if _, err := w.Write(buf); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// bareProxy is the standard library's, set to flush at once and given as many
// idle connections as Lull's: the least that a proxy costs in Go.
func bareProxy(to string) (http.Handler, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("upstream: got %q: %w", to, err)
	}
	bare := &httputil.ReverseProxy{
		Rewrite:       func(pr *httputil.ProxyRequest) { pr.SetURL(u) },
		FlushInterval: -1,
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 1024},
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Without it the server takes the rest of the request's body when the answer
		// begins, under the transport that reads it, and breaks some streams.
		_ = http.NewResponseController(w).EnableFullDuplex()
		bare.ServeHTTP(w, r)
	}), nil
}

// lullProxy is Lull's data path with a gate that admits at once and an observer
// that keeps only what Lull says of its own time.
func lullProxy(to string, o *open) http.Handler {
	cfg := proxy.DefaultConfig()
	cfg.Upstreams = []proxy.Upstream{{Name: "bench", URL: to}}
	return proxy.New(cfg, o, o)
}

// Admit lets every request go.
func (*open) Admit(context.Context, proxy.Request) proxy.Verdict {
	return proxy.Verdict{Forward: true, Outcome: proxy.OutcomeForwarded}
}

// Content does nothing with a content event.
func (*open) Content(string, time.Time, int) {}
