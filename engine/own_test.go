package engine

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestLullsOwnAddressIsNoServer(t *testing.T) {
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(AskHeader) == "" {
			t.Errorf("%s: asked on, without the question", r.URL.Path)
		}
		w.WriteHeader(http.StatusMisdirectedRequest)
		_, _ = io.WriteString(w, `{"error":{"code":"`+CodeOwnAddress+`"}}`)
	}))
	_, _, err := probe(t, probeConfig(t, url))
	want := "probe: " + url + ": it is Lull's own address, want the LLM server's (engines[].url of that Lull's config); nothing is read"
	if !errors.Is(err, ErrLull) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	for name, status := range map[string]string{"serves": "ok", "another 421": "421 lost", "no such path": "404 ", "starting": "503 "} {
		c := DefaultConfig()
		c.Name, c.URL = "x", serve(t, routes{"/health": status})
		if err := NotLull(t.Context(), c); err != nil {
			t.Errorf("%s: %v, want no word of a Lull", name, err)
		}
	}
	if err := NotLull(t.Context(), Config{Name: "x", URL: "a"}); err == nil || !strings.HasPrefix(err.Error(), `engine x: url: got "a"`) {
		t.Errorf("bad address: %v", err)
	}
}

func TestKeyOpensAListThatIsNotForEverybody(t *testing.T) {
	locked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		routes{"/v1/models": models}.ServeHTTP(w, r)
	})
	cfg := probeConfig(t, serve(t, locked))
	if _, r, err := probe(t, cfg); err != nil || !r.Locked {
		t.Errorf("without a key: %+v, %v, want locked", r, err)
	}
	cfg.Key = "sk-1"
	text, r, err := probe(t, cfg)
	if err != nil || r.Locked || !strings.Contains(text, "tiny") || strings.Contains(text, "sk-1") {
		t.Errorf("with it: %+v, %v, want the models and no key in\n%s", r, err, text)
	}
}
