package endpoint

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// TLS is what a server of the operator's own PKI needs: files in PEM. The zero
// value trusts the system's CAs and shows no certificate.
type TLS struct {
	// CA is a file of the certificates that are trusted in place of the system's; a
	// server's own self-signed one may stand in it.
	CA string `koanf:"ca"`
	// Cert and Key are what Lull shows to the server (mutual TLS): both or neither.
	// Cert may hold the chain.
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// ServerName is the name that the server's certificate must have; empty means the
	// host of the address.
	ServerName string `koanf:"server_name"`
}

// Validate reads no file. The error names the field as configs spell it.
func (t TLS) Validate(at Endpoint) error {
	switch {
	case t == TLS{}:
		return nil
	case !at.Encrypted():
		return fmt.Errorf("tls: got settings for %q, want them for an https address only", at)
	case t.Cert != "" && t.Key == "":
		return fmt.Errorf("tls.key: got none beside cert %q, want the file of its private key", t.Cert)
	case t.Key != "" && t.Cert == "":
		return fmt.Errorf("tls.cert: got none beside key %q, want the file of its certificate", t.Key)
	}
	return nil
}

// texts are what stands in the files, in the order of TLS.
type texts [3]string

// trust is TLS as its files are now.
type trust struct {
	files TLS

	mu     sync.Mutex
	read   texts
	config *tls.Config // nil before the first reading
}

// now is the config for the next handshake. The files are read each time, which
// costs little beside a handshake; while they cannot be used, what was read last
// holds: a half-written certificate costs nothing. The error is that of the first
// reading.
func (t *trust) now() (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, err := t.files.texts()
	if err == nil && (t.config == nil || found != t.read) {
		var c *tls.Config
		if c, err = t.files.config(found); err == nil {
			t.config, t.read = c, found
		}
	}
	if t.config == nil {
		return nil, err
	}
	return t.config, nil
}

func (t TLS) texts() (out texts, err error) {
	for i, f := range []struct{ field, name string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}} {
		if f.name == "" {
			continue
		}
		b, err := os.ReadFile(f.name)
		if err != nil {
			return out, fmt.Errorf("tls.%s: %w", f.field, err)
		}
		out[i] = string(b)
	}
	return out, nil
}

// config is what the files say.
func (t TLS) config(found texts) (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if t.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(found[0])) {
			return nil, fmt.Errorf("tls.ca: got %q, which has no certificate in it, want PEM with at least one", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(found[1]), []byte(found[2]))
		if err != nil {
			return nil, fmt.Errorf("tls.cert: got %q and key %q, want a certificate and its private key in PEM: %w", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
