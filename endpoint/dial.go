package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

// fullPause is between two tries at a socket whose queue is full: a server takes
// all that waits in one turn of its loop.
const fullPause = 2 * time.Millisecond

// Dialer opens connections to one endpoint, or by TCP to all that have the same
// TLS.
type Dialer struct {
	socket string
	trust  *trust
	limit  time.Duration
	wrap   func(net.Conn) net.Conn // nil for none
}

// NewDialer makes one; limit ends the dialling of a connection, its handshake
// included. It reads the files of TLS: what can be used of them now holds until
// something else can. What cannot is told by Check and by the first handshake.
func NewDialer(at Endpoint, files TLS, limit time.Duration) *Dialer {
	d := &Dialer{socket: at.socket, trust: &trust{files: files}, limit: limit}
	_ = d.Check()
	return d
}

// Wrapping makes every connection that is dialled go through wrap, before TLS.
func (d *Dialer) Wrapping(wrap func(net.Conn) net.Conn) *Dialer {
	d.wrap = wrap
	return d
}

// Check reads the files of TLS, so that a fault in them is told before anybody
// needs them. It dials nobody.
func (d *Dialer) Check() error {
	_, err := d.trust.now()
	return err
}

// Use makes a transport dial by d. It speaks HTTP/1.1, which is what LLM servers
// speak.
func (d *Dialer) Use(t *http.Transport) {
	t.DialContext, t.DialTLSContext = d.dial, d.dialTLS
}

func (d *Dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	conn, err := d.connect(ctx, network, addr)
	if err != nil || d.wrap == nil {
		return conn, err
	}
	return d.wrap(conn), nil
}

func (d *Dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.socket == "" {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	var full error
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", d.socket)
		var late net.Error
		switch {
		case errors.Is(err, syscall.EAGAIN):
			full = err
		case full != nil && errors.As(err, &late) && late.Timeout():
			return nil, full
		default:
			return conn, err
		}
		// The queue is full. At a port the kernel tries again; at a socket it does not
		// (connect(2)).
		select {
		case <-ctx.Done():
			return nil, full
		case <-time.After(fullPause):
		}
	}
}

func (d *Dialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	config, err := d.trust.now()
	if err != nil {
		return nil, &HandshakeError{addr, err}
	}
	if config.ServerName == "" {
		config = config.Clone()
		if config.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			config.ServerName = addr
		}
	}
	conn, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &HandshakeError{addr, err}
	}
	return secure, nil
}

// HandshakeError is TLS that did not come about: no byte of a request has gone.
type HandshakeError struct {
	Addr string
	Err  error
}

// Error names the address.
func (e *HandshakeError) Error() string { return fmt.Sprintf("tls with %s: %v", e.Addr, e.Err) }

// Unwrap is what went wrong.
func (e *HandshakeError) Unwrap() error { return e.Err }

// Late says that the handshake had no end in time: somebody listens, and may be
// computing.
func (e *HandshakeError) Late() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// NoRequestSent says that err came while a connection was being opened: whatever
// was to be sent on it reached nobody.
func NoRequestSent(err error) bool {
	var op *net.OpError
	var shake *HandshakeError
	return errors.As(err, &shake) || errors.As(err, &op) && op.Op == "dial"
}

// NobodyListens says that err is the kernel's word for an address where no server
// is: it refuses at a port, and at a socket's path there may be no file.
func NobodyListens(err error) bool {
	var op *net.OpError
	return errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &op) && op.Op == "dial" && op.Net == "unix" && errors.Is(err, syscall.ENOENT)
}
