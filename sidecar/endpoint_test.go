package sidecar

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/endpoint/endpointtest"
)

func TestServerBehindASocketIsServedAndReady(t *testing.T) {
	path := endpointtest.Socket(t, whole("from the socket"))
	l := newLone(t, whole("nobody's"), func(f *config.File) { f.Engines[0].URL = "unix://" + path }, nil)
	l.chat("from the socket")
	l.shows(`lull_ready 1`)
	if ready, text := l.readyz(); !ready {
		t.Errorf("not ready: %s", text)
	}
}

func TestCertificatesAreTakenOverByAReload(t *testing.T) {
	ca, other := endpointtest.NewCA(t), endpointtest.NewCA(t)
	client := ca.Issue("lull")
	s := endpointtest.Server(t, whole("by TLS"), ca.Issue("127.0.0.1"), ca)
	l := newLone(t, whole("nobody's"), func(f *config.File) {
		f.Engines[0].URL, f.Engines[0].TLS = s.URL, endpoint.TLS{CA: other.File}
	}, nil)
	if status, _, text, err := l.call(http.MethodPost, l.base+chatPath, "{}", nil); err != nil || status != 502 || !strings.Contains(text, "unknown authority") {
		t.Errorf("got %d %s, %v; want 502 and why", status, text, err)
	}
	next := l.file
	next.Engines = slices.Clone(l.file.Engines)
	next.Engines[0].TLS = endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}
	changed, restart, err := l.sidecar.Reload(next)
	if want := []string{"engines[0].tls.ca", "engines[0].tls.cert", "engines[0].tls.key"}; err != nil || !slices.Equal(changed, want) || len(restart) != 0 {
		t.Fatalf("changed %v, restart %v, %v; want %v", changed, restart, err, want)
	}
	l.chat("by TLS")
	gone := filepath.Join(t.TempDir(), "ca.pem")
	bad := next
	bad.Engines = slices.Clone(next.Engines)
	bad.Engines[0].TLS.CA = gone
	if _, _, err := l.sidecar.Reload(bad); err == nil || err.Error() != "engines[0].tls.ca: open "+gone+": no such file or directory" {
		t.Errorf("got %v, want the file named", err)
	}
	l.chat("by TLS") // as before
}

func TestUnreadableCertificateIsSaidAtTheStart(t *testing.T) {
	f := config.ForUpstream("https://127.0.0.1:1")
	f.Engines[0].TLS.CA = "/nowhere/ca.pem"
	want := "engines[0].tls.ca: open /nowhere/ca.pem: no such file or directory"
	if _, err := New(f, quietLogger()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
