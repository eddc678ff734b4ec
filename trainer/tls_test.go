package trainer

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"

	"github.com/lull-project/lull/endpoint/endpointtest"
)

const testToken = "a-token-of-16-bytes-or-more"

// pair is a certificate, and what its CA is to both sides of a test.
type pair struct {
	server, client *tls.Config
	pem            []byte
}

func certified(t *testing.T) pair {
	t.Helper()
	ca := endpointtest.NewCA(t)
	files := ca.Issue("127.0.0.1")
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return pair{
		server: &tls.Config{Certificates: []tls.Certificate{cert}},
		client: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"},
		pem:    text,
	}
}

func dialTLS(t *testing.T, srv *Server, p pair) *client {
	t.Helper()
	conn, err := tls.Dial("tcp", srv.TCPAddr(), p.client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return newClient(t, conn)
}

func TestTCPNeedsTLSAndTheToken(t *testing.T) {
	p := certified(t)
	srv, r := listen(t, func(c *Config) { c.TCPAddr, c.TLS, c.Token = "127.0.0.1:0", p.server, testToken })

	bad := dialTLS(t, srv, p)
	h := testHello()
	h.Token = "wrong"
	bad.send(h)
	if m := bad.read(); m != (ErrorLine{"hello", "token", "wrong, want the sidecar's trainer.token"}) {
		t.Errorf("got %+v", m)
	}
	bad.ended()

	good := dialTLS(t, srv, p)
	h.Token = testToken
	good.send(h)
	if _, ok := good.read().(Welcome); !ok {
		t.Fatal("no welcome")
	}
	e := r.next(t, "hello")
	if e.msg.(Hello).Token != "" || e.s.PID() != 0 {
		t.Errorf("hello %+v, pid %d: want no token, and no pid that this kernel does not know", e.msg, e.s.PID())
	}
	for i := range 50 {
		if err := e.s.Send(Budget{Epoch: uint64(i), Bytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m := good.read().(Budget)
		if m.Epoch == 49 { // newer budgets may have replaced older ones
			break
		}
	}
	good.send(Bye{})
	if e := r.next(t, "gone"); e.why != GoneBye {
		t.Errorf("gone %s, want %s", e.why, GoneBye)
	}
}

func TestPlainTextOnTheTLSPortIsNoSession(t *testing.T) {
	p := certified(t)
	srv, r := listen(t, func(c *Config) { c.TCPAddr, c.TLS, c.Token = "127.0.0.1:0", p.server, testToken })
	conn, err := net.Dial("tcp", srv.TCPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := newClient(t, conn)
	c.send(testHello())
	c.ended()
	r.fault(t)
}
