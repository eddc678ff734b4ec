package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// quietServer runs a server on a real listener, without its log.
func quietServer(s *http.Server) *httptest.Server {
	ts := httptest.NewUnstartedServer(nil)
	s.ErrorLog = log.New(io.Discard, "", 0)
	ts.Config = s
	ts.Start()
	return ts
}

// plainRelay is a relay as one writes it down; with nothing set it is right. Each
// field puts in the place of a right part what proxies have had there.
type plainRelay struct {
	transport func(*http.Transport)
	ctx       func(context.Context) context.Context
	body      func([]byte) []byte // of the request
	keepHop   bool
	retry     bool
	first     func(http.ResponseWriter) // before the upstream is asked
	copy      func(w io.Writer, flush func(), r io.Reader) error
	onErr     func() // when the answer broke; nil aborts
	wrap      func(http.Handler) http.Handler
	server    func(*http.Server)
}

func (p plainRelay) serve(upstream string) *http.Server {
	tr := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	if p.transport != nil {
		p.transport(tr)
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.relay(w, r, tr, upstream) })
	if p.wrap != nil {
		h = p.wrap(h)
	}
	s := &http.Server{Handler: h}
	if p.server != nil {
		p.server(s)
	}
	return s
}

func (p plainRelay) relay(w http.ResponseWriter, r *http.Request, tr *http.Transport, upstream string) {
	ctx := r.Context()
	if p.ctx != nil {
		ctx = p.ctx(ctx)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	length := int64(len(b))
	if p.body != nil {
		b = p.body(b)
	}
	if p.first != nil {
		p.first(w)
	}
	var res *http.Response
	for try := 0; try < 3; try++ {
		out, _ := http.NewRequestWithContext(ctx, r.Method, upstream+r.URL.RequestURI(), io.NopCloser(bytes.NewReader(b)))
		out.Header, out.ContentLength = r.Header.Clone(), length
		if !p.keepHop {
			dropHop(out.Header)
		}
		if res, err = tr.RoundTrip(out); err != nil || !p.retry || res.StatusCode < 400 || try == 2 {
			break
		}
		res.Body.Close()
	}
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	if !p.keepHop {
		dropHop(res.Header)
	}
	for k, v := range res.Header {
		w.Header()[k] = v
	}
	if p.first == nil {
		w.WriteHeader(res.StatusCode)
	}
	flush := func() { w.(http.Flusher).Flush() }
	if p.copy == nil {
		p.copy = pieces(func(b []byte) []byte { return b })
	}
	if err := p.copy(w, flush, res.Body); err != nil {
		if p.onErr == nil {
			panic(http.ErrAbortHandler)
		}
		p.onErr()
	}
}

// pieces copies read by read, each changed by f and flushed.
func pieces(f func([]byte) []byte) func(io.Writer, func(), io.Reader) error {
	return func(w io.Writer, flush func(), r io.Reader) error {
		flush()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			if _, werr := w.Write(f(buf[:n])); werr != nil {
				return werr
			}
			flush()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}

// lines copies what a splitter finds, each with a line feed.
func lines(split bufio.SplitFunc) func(io.Writer, func(), io.Reader) error {
	return func(w io.Writer, flush func(), r io.Reader) error {
		s := bufio.NewScanner(r)
		s.Split(split)
		for s.Scan() {
			io.WriteString(w, s.Text()+"\n")
			flush()
		}
		return s.Err()
	}
}

// unicodeLines splits as str.splitlines does in Python.
func unicodeLines(p []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(p, "\n\r\v\f\u0085\u2028\u2029"); i >= 0 {
		_, size := utf8.DecodeRune(p[i:])
		return i + size, p[:i], nil
	}
	if atEOF && len(p) > 0 {
		return len(p), p, nil
	}
	return 0, nil, nil
}

// wholeLines relays complete lines only.
func wholeLines(w io.Writer, flush func(), r io.Reader) error {
	br := bufio.NewReader(r)
	for {
		l, err := br.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		io.WriteString(w, l)
		flush()
	}
}

// reencode reads each read's data as what it knows and writes that.
func reencode(p []byte) []byte {
	var known struct {
		Choices []struct {
			Delta map[string]any `json:"delta"`
		} `json:"choices"`
	}
	data, ok := strings.CutPrefix(string(p), "data: ")
	if !ok || json.Unmarshal([]byte(data), &known) != nil {
		return p
	}
	out, _ := json.Marshal(known)
	return []byte("data: " + string(out) + "\n\n")
}

// usageOrFail ends the answer when a read that seems to have usage is no JSON.
func usageOrFail(w io.Writer, flush func(), r io.Reader) error {
	br, buf := bufio.NewReaderSize(r, 16), make([]byte, 300)
	for {
		n, err := br.Read(buf)
		p := buf[:n]
		if bytes.Contains(p, []byte(`"u`)) && !json.Valid(bytes.TrimPrefix(p, []byte("data: "))) {
			return errInBand
		}
		w.Write(p)
		flush()
		if err != nil {
			return nil
		}
	}
}

// queued reads on whatever the client does.
func queued(w io.Writer, flush func(), r io.Reader) error {
	b, err := io.ReadAll(r)
	if err == nil {
		_, err = w.Write(b)
	}
	flush()
	return err
}

func recovers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }()
		h.ServeHTTP(w, r)
	})
}

func compresses(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			h.ServeHTTP(w, r)
			return
		}
		zw := gzip.NewWriter(w)
		defer zw.Close()
		w.Header().Set("Content-Encoding", "gzip")
		h.ServeHTTP(zipped{w, zw}, r)
	})
}

type zipped struct {
	http.ResponseWriter
	zw *gzip.Writer
}

func (z zipped) Write(p []byte) (int, error) { return z.zw.Write(p) }
func (z zipped) Flush()                      {}

// wrongRelays are faults that public reports found in proxies, and the checks
// that must see each.
var wrongRelays = []struct {
	name  string
	relay plainRelay
	fails []string
}{
	{"reads all before it writes", plainRelay{copy: queued}, []string{
		"each event arrives before the next is sent", "lines of JSON arrive one by one", "headers arrive before a late body", "a client that reads nothing holds the upstream back",
	}},
	{"collects 4 KiB", plainRelay{copy: func(w io.Writer, flush func(), r io.Reader) error {
		flush()
		bw := bufio.NewWriterSize(w, 4<<10)
		_, err := io.Copy(bw, struct{ io.Reader }{r})
		_ = bw.Flush()
		return err
	}}, []string{"each event arrives before the next is sent", "an answer of unknown length arrives as it comes"}},
	{"flushes for one spelling of the type", plainRelay{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(spelled{w}, r) })
	}}, []string{"a media type may have a parameter", "lines of JSON arrive one by one"}},
	{"compresses for who accepts it", plainRelay{wrap: compresses}, []string{"a stream is not compressed"}},
	{"inflates by itself", plainRelay{transport: func(t *http.Transport) { t.DisableCompression = false }}, []string{
		"a compressed answer passes unchanged", "nothing is asked for that the client did not ask",
	}},
	{"decodes each read as text", plainRelay{copy: pieces(func(p []byte) []byte { return bytes.ToValidUTF8(p, []byte("\ufffd")) })}, []string{
		"a character cut between reads passes", "events cut anywhere pass unchanged",
	}},
	{"scans lines of at most 64 KiB", plainRelay{copy: lines(bufio.ScanLines)}, []string{"a line of any length passes", "events cut anywhere pass unchanged"}},
	{"splits lines as Unicode does", plainRelay{copy: lines(unicodeLines)}, []string{"only LF, CR and CRLF end a line"}},
	{"waits for whole lines", plainRelay{copy: wholeLines}, []string{"the last line needs no line feed"}},
	{"drops comments", plainRelay{copy: pieces(func(p []byte) []byte {
		if bytes.HasPrefix(p, []byte(":")) {
			return nil
		}
		return p
	})}, []string{"comments pass"}},
	{"re-encodes events", plainRelay{copy: pieces(reencode)}, []string{"what the relay does not know survives"}},
	{"ends what it cannot parse", plainRelay{copy: usageOrFail}, []string{"an event cut inside its usage passes"}},
	{"says 200 before it asks", plainRelay{first: func(w http.ResponseWriter) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
	}}, []string{"an error keeps its status and its body"}},
	{"ends a broken answer well", plainRelay{onErr: func() {}}, []string{"a cut answer is a broken transfer"}},
	{"recovers every panic", plainRelay{wrap: recovers}, []string{"a cut answer is a broken transfer"}},
	{"reads on when its client is gone", plainRelay{
		ctx: context.WithoutCancel,
		copy: func(w io.Writer, flush func(), r io.Reader) error {
			err := pieces(func(b []byte) []byte { return b })(w, flush, r)
			_, _ = io.Copy(io.Discard, r)
			return err
		},
	}, []string{"a client that leaves cancels the upstream", "a client that leaves before the first byte cancels the upstream"}},
	{"limits the time to write", plainRelay{server: func(s *http.Server) { s.WriteTimeout = late }}, []string{"a flowing stream has no total limit"}},
	{"limits the whole request", plainRelay{ctx: func(ctx context.Context) context.Context {
		ctx, cancel := context.WithTimeout(ctx, late)
		context.AfterFunc(ctx, cancel)
		return ctx
	}}, []string{"a flowing stream has no total limit", "a late header is waited for"}},
	{"limits the wait for a header", plainRelay{transport: func(t *http.Transport) { t.ResponseHeaderTimeout = late }}, []string{"a late header is waited for"}},
	{"asks again after a refusal", plainRelay{retry: true}, []string{"a refusal is not asked for again"}},
	{"passes every field", plainRelay{keepHop: true}, []string{"hop-by-hop fields stay behind"}},
	{"asks for usage", plainRelay{body: func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"include_usage":false`), []byte(`"include_usage":true `), 1)
	}}, []string{"nothing is asked for that the client did not ask"}},
	{"reads the body and forgets it", plainRelay{body: func([]byte) []byte { return nil }}, []string{"nothing is asked for that the client did not ask"}},
	{"rewrites the body and keeps its length", plainRelay{body: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(" "), nil) }},
		[]string{"nothing is asked for that the client did not ask"}},
}

// spelled flushes only for the bare media type.
type spelled struct{ http.ResponseWriter }

func (s spelled) Flush() {
	if s.Header().Get("Content-Type") == "text/event-stream" {
		s.ResponseWriter.(http.Flusher).Flush()
	}
}

func check(t *testing.T, name string) relayCheck {
	t.Helper()
	i := slices.IndexFunc(relayChecks, func(c relayCheck) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no check is named %q", name)
	}
	return relayChecks[i]
}

func TestRelayDoesAllThatItMust(t *testing.T) {
	for _, c := range relayChecks {
		t.Run(c.name, func(t *testing.T) {
			err := c.run(&trial{cleanup: t.Cleanup, patience: wait, relay: func(upstream string) *http.Server {
				cfg := DefaultConfig()
				cfg.Upstreams = []Upstream{{Name: "fake", URL: upstream}}
				p := New(cfg, nil, nil)
				t.Cleanup(p.Close)
				return Server(p)
			}})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestChecksPassOnAPlainRelay shows that nothing but the fault makes a wrong
// relay fail.
func TestChecksPassOnAPlainRelay(t *testing.T) {
	for _, c := range relayChecks {
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(&trial{cleanup: t.Cleanup, patience: wait, relay: plainRelay{}.serve}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestChecksFailOnRelaysThatAreWrong(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range wrongRelays {
		for _, name := range w.fails {
			seen[name] = true
			t.Run(w.name+"/"+name, func(t *testing.T) {
				err := check(t, name).run(&trial{cleanup: t.Cleanup, patience: time.Second / 2, relay: w.relay.serve})
				if err == nil {
					t.Error("the check passed, want it to see the fault")
				} else {
					t.Log(err)
				}
			})
		}
	}
	for _, c := range relayChecks {
		if !seen[c.name] {
			t.Errorf("%s: no wrong relay fails it, so nothing shows that it checks", c.name)
		}
	}
}
