package endpoint_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/endpoint/endpointtest"
)

const limit = 10 * time.Second

// caller says who called, by the certificate that was shown.
var caller = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	who := "nobody"
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	fmt.Fprintf(w, "%s at %s%s", who, r.Host, r.URL.Path)
})

// get asks over a new connection.
func get(t *testing.T, d *endpoint.Dialer, at endpoint.Endpoint) (string, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	d.Use(transport)
	res, err := (&http.Client{Transport: transport}).Get(at.Base() + "/v1/models")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func parse(t *testing.T, raw string) endpoint.Endpoint {
	t.Helper()
	at, err := endpoint.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestServerBehindASocketIsCalledLocalhost(t *testing.T) {
	at := parse(t, "unix://"+endpointtest.Socket(t, caller))
	if got, err := get(t, endpoint.NewDialer(at, endpoint.TLS{}, limit), at); got != "nobody at localhost/v1/models" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestServerOfOnesOwnCAIsTrustedAndShownACertificate(t *testing.T) {
	ca := endpointtest.NewCA(t)
	s := endpointtest.Server(t, caller, ca.Issue("127.0.0.1"), ca)
	at, client := parse(t, s.URL), ca.Issue("lull")
	ours := endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}
	if got, err := get(t, endpoint.NewDialer(at, ours, limit), at); !strings.HasPrefix(got, "lull at 127.0.0.1:") {
		t.Errorf("got %q, %v", got, err)
	}
	for what, c := range map[string]struct {
		tls  endpoint.TLS
		want string
	}{
		"the system's CAs only":      {endpoint.TLS{}, "certificate signed by unknown authority"},
		"another CA":                 {endpoint.TLS{CA: endpointtest.NewCA(t).File}, "certificate signed by unknown authority"},
		"no certificate to show":     {endpoint.TLS{CA: ca.File}, "certificate required"},
		"another name than its own":  {endpoint.TLS{CA: ca.File, ServerName: "vllm.lan"}, "vllm.lan"},
		"files that are not there":   {endpoint.TLS{CA: filepath.Join(t.TempDir(), "ca.pem")}, "tls.ca: open "},
		"a certificate for a client": {endpoint.TLS{CA: client.Cert}, "certificate signed by unknown authority"},
	} {
		got, err := get(t, endpoint.NewDialer(at, c.tls, limit), at)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v; want an error with %q", what, got, err, c.want)
		}
	}
}

func TestNameOfACertificateMayBeGiven(t *testing.T) {
	ca := endpointtest.NewCA(t)
	s := endpointtest.Server(t, caller, ca.Issue("vllm.lan"), nil)
	at := parse(t, s.URL)
	if got, err := get(t, endpoint.NewDialer(at, endpoint.TLS{CA: ca.File, ServerName: "vllm.lan"}, limit), at); !strings.HasPrefix(got, "nobody at 127.0.0.1:") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRenewedCertificateIsUsedWithoutARestart(t *testing.T) {
	ca := endpointtest.NewCA(t)
	client := ca.Issue("before")
	s := endpointtest.Server(t, caller, ca.Issue("127.0.0.1"), ca)
	at := parse(t, s.URL)
	d := endpoint.NewDialer(at, endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}, limit)
	is := func(when, want string) {
		t.Helper()
		if got, err := get(t, d, at); !strings.HasPrefix(got, want+" at ") {
			t.Errorf("%s: got %q, %v; want %s", when, got, err, want)
		}
	}
	is("at first", "before")
	ca.Reissue("after", client)
	is("renewed", "after")
	whole, err := os.ReadFile(client.Cert)
	if err != nil {
		t.Fatal(err)
	}
	write(t, client.Cert, whole[:len(whole)/2])
	is("half-written", "after")
	if err := os.Remove(client.Cert); err != nil {
		t.Fatal(err)
	}
	is("removed", "after")
	ca.Reissue("again", client)
	is("there again", "again")
}

// TestCertificateThatIsBadAtTheFirstHandshakeIsTheOneOfTheStart: a renewal may be half
// done when the first request comes.
func TestCertificateThatIsBadAtTheFirstHandshakeIsTheOneOfTheStart(t *testing.T) {
	ca := endpointtest.NewCA(t)
	client := ca.Issue("at the start")
	s := endpointtest.Server(t, caller, ca.Issue("127.0.0.1"), ca)
	at := parse(t, s.URL)
	d := endpoint.NewDialer(at, endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}, limit)
	write(t, client.Cert, nil)
	if got, err := get(t, d, at); !strings.HasPrefix(got, "at the start at ") {
		t.Errorf("got %q, %v; want the certificate that was there when the dialler was made", got, err)
	}
	ca.Reissue("renewed", client)
	if got, err := get(t, d, at); !strings.HasPrefix(got, "renewed at ") {
		t.Errorf("got %q, %v; want the renewed one", got, err)
	}
}

func TestTrustIsWithdrawnWithTheFile(t *testing.T) {
	ca, other := endpointtest.NewCA(t), endpointtest.NewCA(t)
	s := endpointtest.Server(t, caller, ca.Issue("127.0.0.1"), nil)
	at, file := parse(t, s.URL), filepath.Join(t.TempDir(), "ca.pem")
	copyFile(t, ca.File, file)
	d := endpoint.NewDialer(at, endpoint.TLS{CA: file}, limit)
	if _, err := get(t, d, at); err != nil {
		t.Fatal(err)
	}
	copyFile(t, other.File, file)
	if got, err := get(t, d, at); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with another CA in the file: got %q, %v", got, err)
	}
}

// TestFullQueueOfASocketIsWaitedOut: the kernel refuses who comes to a socket whose
// queue is full, and makes who comes to a port wait.
func TestFullQueueOfASocketIsWaitedOut(t *testing.T) {
	dir, err := os.MkdirTemp("", "lull")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	var waiting []net.Conn
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, c)
	}
	at := parse(t, "unix://"+path)
	if _, err := get(t, endpoint.NewDialer(at, endpoint.TLS{}, 20*time.Millisecond), at); !errors.Is(err, unix.EAGAIN) || !endpoint.NoRequestSent(err) {
		t.Errorf("while it stays full: got %v, want the kernel's word at the end of the limit", err)
	}
	answered := make(chan string, 1)
	go func() { got, _ := get(t, endpoint.NewDialer(at, endpoint.TLS{}, limit), at); answered <- got }()
	for _, c := range waiting {
		c.Close()
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	s := &http.Server{Handler: caller}
	ended := make(chan struct{})
	go func() { _ = s.Serve(l); close(ended) }() // ends with Close
	if got := <-answered; got != "nobody at localhost/v1/models" {
		t.Errorf("once there is room: got %q", got)
	}
	s.Close()
	<-ended
}

func TestFaultyFilesAreToldByField(t *testing.T) {
	ca := endpointtest.NewCA(t)
	one, other := ca.Issue("one"), ca.Issue("other")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	write(t, empty, nil)
	gone := filepath.Join(t.TempDir(), "gone.pem")
	for want, files := range map[string]endpoint.TLS{
		"tls.ca: open " + gone + ": no such file or directory":                                           {CA: gone},
		"tls.cert: open " + gone + ": no such file or directory":                                         {Cert: gone, Key: one.Key},
		"tls.key: open " + gone + ": no such file or directory":                                          {Cert: one.Cert, Key: gone},
		fmt.Sprintf("tls.ca: got %q, which has no certificate in it, want PEM with at least one", empty): {CA: empty},
		fmt.Sprintf("tls.cert: got %q and key %q, want a certificate and its private key in PEM: tls: private key does not match public key",
			one.Cert, other.Key): {Cert: one.Cert, Key: other.Key},
	} {
		if err := endpoint.NewDialer(parse(t, "https://x"), files, limit).Check(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func TestSettingsOfTLSMustBelongTogether(t *testing.T) {
	secure := parse(t, "https://x:8443")
	for _, c := range []struct {
		at   endpoint.Endpoint
		tls  endpoint.TLS
		want string
	}{
		{secure, endpoint.TLS{CA: "a", Cert: "b", Key: "c", ServerName: "d"}, ""},
		{parse(t, "http://x"), endpoint.TLS{}, ""},
		{parse(t, "http://x"), endpoint.TLS{ServerName: "x"}, `tls: got settings for "http://x", want them for an https address only`},
		{parse(t, "unix:///x"), endpoint.TLS{CA: "a"}, `tls: got settings for "unix:///x", want them for an https address only`},
		{secure, endpoint.TLS{Cert: "b"}, `tls.key: got none beside cert "b", want the file of its private key`},
		{secure, endpoint.TLS{Key: "c"}, `tls.cert: got none beside key "c", want the file of its certificate`},
	} {
		if err := c.tls.Validate(c.at); (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%v at %v: got %v, want %q", c.tls, c.at, err, c.want)
		}
	}
}

func TestServerThatSaysNothingEndsTheHandshakeInTime(t *testing.T) {
	mute := mute(t)
	at := parse(t, "https://"+mute.Addr().String())
	_, err := get(t, endpoint.NewDialer(at, endpoint.TLS{}, 500*time.Millisecond), at)
	var shake *endpoint.HandshakeError
	if !errors.As(err, &shake) || !shake.Late() || shake.Addr != mute.Addr().String() || !endpoint.NoRequestSent(err) {
		t.Errorf("got %v, want a handshake that did not come about", err)
	}
}

func TestErrorsSayWhetherAServerIsThere(t *testing.T) {
	mute := mute(t)
	refuses := mute.Addr().String()
	gone := filepath.Join(t.TempDir(), "s")
	_ = mute.Close()
	for raw, nobody := range map[string]bool{
		"http://" + refuses: true, "https://" + refuses: true, "unix://" + gone: true,
	} {
		at := parse(t, raw)
		_, err := get(t, endpoint.NewDialer(at, endpoint.TLS{}, limit), at)
		if err == nil || endpoint.NobodyListens(err) != nobody || !endpoint.NoRequestSent(err) {
			t.Errorf("%s: got %v: nobody listens %v, no request sent %v; want %v and true", raw, err, endpoint.NobodyListens(err), endpoint.NoRequestSent(err), nobody)
		}
	}
	at := parse(t, "unix://"+endpointtest.Socket(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
	if _, err := get(t, endpoint.NewDialer(at, endpoint.TLS{}, limit), at); err == nil || endpoint.NobodyListens(err) || endpoint.NoRequestSent(err) {
		t.Errorf("an answer that broke: got %v, want neither", err)
	}
	name := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}}
	if endpoint.NobodyListens(name) || !endpoint.NoRequestSent(name) {
		t.Error("a name that is not known says nothing of a listener, and no request went out")
	}
	if endpoint.NobodyListens(os.ErrNotExist) || endpoint.NoRequestSent(os.ErrNotExist) {
		t.Error("a file that is not there says nothing of a server")
	}
}

// mute listens and accepts nobody.
func mute(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, b)
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
