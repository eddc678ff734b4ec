package engine

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testTime is the clock of every engine in these tests.
var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// routes answers paths by fixed bodies and everything else by 404.
type routes map[string]string

func (r routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, ok := r[req.URL.Path]
	if !ok {
		http.NotFound(w, req)
		return
	}
	if code, rest, ok := strings.Cut(body, " "); ok && len(code) == 3 && code[0] >= '3' && code[0] <= '5' {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(must(strconv.Atoi(code)))
		body = rest
	}
	if strings.HasPrefix(body, "llama ") {
		w.Header().Set("Server", "llama.cpp")
		body = strings.TrimPrefix(body, "llama ")
	}
	_, _ = w.Write([]byte(body))
}

func must(n int, err error) int {
	if err != nil {
		panic(err)
	}
	return n
}

// serve starts a listener that ends with the test.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// open opens an engine that is closed with the test.
func open(t *testing.T, c Config) Engine {
	t.Helper()
	c.Name = "main"
	c.Now = func() time.Time { return testTime }
	e, err := Open(t.Context(), c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = Close(e) })
	return e
}

// read is a file of testdata.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantError checks that err's text holds every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %q, want it to contain %q", err, p)
		}
	}
}
