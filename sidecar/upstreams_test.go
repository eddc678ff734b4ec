package sidecar

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
)

func TestRequestsFollowTheUpstreamsHealth(t *testing.T) {
	first := httptest.NewServer(whole("first"))
	addr := strings.TrimPrefix(first.URL, "http://")
	l := newLone(t, whole("second"), func(f *config.File) {
		f.Engines = append([]config.Engine{{Name: "front", Kind: "openai", URL: first.URL}}, f.Engines...)
	}, nil)
	l.chat("first")
	next := l.file
	next.Proxy.Failover = true
	if changed, restart, err := l.sidecar.Reload(next); err != nil || len(changed) != 1 || len(restart) != 0 {
		t.Fatalf("changed %v, restart %v, %v", changed, restart, err)
	}
	first.Close()
	l.chat("second") // at once: it could not be dialled
	l.chat("second")
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	back := &http.Server{Handler: whole("first")}
	ended := make(chan struct{})
	go func() { _ = back.Serve(again); close(ended) }() // ends when the test closes it
	defer func() { back.Close(); <-ended }()
	l.logged(`upstream is up again" engine=front`)
	l.chat("first")
}
