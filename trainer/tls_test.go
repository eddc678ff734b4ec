package trainer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

const testToken = "a-token-of-16-bytes-or-more"

// pair is a certificate that both sides of a test use.
type pair struct {
	server, client *tls.Config
	pem            []byte
}

func selfSigned(t *testing.T) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lull"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		SubjectKeyId: []byte{1},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return pair{
		server: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
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
	p := selfSigned(t)
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
	p := selfSigned(t)
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
