package endpointtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA signs certificates; File is its own in PEM.
type CA struct {
	File string

	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

// Files are a certificate and its key in PEM.
type Files struct{ Cert, Key string }

// NewCA makes one in a folder of the test's.
func NewCA(t testing.TB) *CA {
	t.Helper()
	c := &CA{t: t, dir: t.TempDir(), key: newKey(t), n: 1}
	c.cert = c.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "a test's CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, c.key)
	c.File = filepath.Join(c.dir, "ca.pem")
	writePEM(t, c.File, "CERTIFICATE", c.cert.Raw)
	return c
}

// Issue makes a certificate for a server or client of this name; "127.0.0.1" names
// an address.
func (c *CA) Issue(name string) Files {
	c.t.Helper()
	f := Files{filepath.Join(c.dir, name+".pem"), filepath.Join(c.dir, name+".key")}
	c.Reissue(name, f)
	return f
}

// Reissue writes another certificate into files that exist.
func (c *CA) Reissue(name string, into Files) {
	c.t.Helper()
	want := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		want.IPAddresses = []net.IP{ip}
	} else {
		want.DNSNames = []string{name}
	}
	key := newKey(c.t)
	cert := c.sign(want, c.cert, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	writePEM(c.t, into.Cert, "CERTIFICATE", cert.Raw)
	writePEM(c.t, into.Key, "PRIVATE KEY", der)
}

func (c *CA) sign(want, by *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	c.t.Helper()
	want.SerialNumber, c.n = big.NewInt(c.n), c.n+1
	want.NotBefore, want.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if by == nil {
		by = want
	}
	der, err := x509.CreateCertificate(rand.Reader, want, by, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

// Server serves h by TLS on loopback with the certificate in files, read at each
// handshake. With clients it wants a certificate of theirs.
func Server(t testing.TB, h http.Handler, files Files, clients *CA) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	// Not GetCertificate: a client that calls an address names no host, and would see
	// the certificate that httptest brings.
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		c := &tls.Config{Certificates: []tls.Certificate{pair}}
		if clients != nil {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			c.ClientCAs.AddCert(clients.cert)
		}
		return c, err
	}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Socket serves h on a unix socket, which it returns.
func Socket(t testing.TB, h http.Handler) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lull") // a test's own folder may have too long a name
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(func() { s.Close(); _ = os.RemoveAll(dir) })
	return path
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
