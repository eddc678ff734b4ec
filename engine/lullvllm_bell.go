package engine

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Datagrams of one byte: look at the page.
const (
	bellBound     = "b" // to the engine: the order page changed
	bellShort     = "s" // from the engine: an allocation fell short
	bellConfirmed = "c" // from the engine: the requested epoch is confirmed
)

// ring wakes the engine. A bell that nobody hears is made up for by the engine's
// own look at the page, ten times a second.
func ring(path, what string) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(what))
}

// bell hears the engine.
type bell struct {
	conn *net.UnixConn
	path string
	done chan struct{}
}

// Shortages returns a channel that gets a value when an allocation fell short in
// the engine; several that follow closely are one. The first call starts the
// listening; Close ends it, and the channel then stays silent. While the socket
// cannot be made, each Observe tries again.
func (e *lullVLLM) Shortages() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rang == nil {
		e.rang = make(chan struct{}, 1)
	}
	e.listen()
	return e.rang
}

// listen starts the bell if somebody waits for it; mu is held.
func (e *lullVLLM) listen() {
	if e.rang == nil || e.bell != nil || e.closed {
		return
	}
	if b, err := listenBell(e.base+".sidecar", e.rang); err == nil {
		e.bell = b
	}
}

func listenBell(path string, rang chan<- struct{}) (*bell, error) {
	// The engine may not have started yet.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		conn.Close()
		return nil, err
	}
	b := &bell{conn: conn, path: path, done: make(chan struct{})}
	go b.hear(rang)
	return b, nil
}

// hear ends when conn closes; close waits for it.
func (b *bell) hear(rang chan<- struct{}) {
	defer close(b.done)
	var buf [16]byte
	for {
		n, err := b.conn.Read(buf[:])
		if err != nil {
			return
		}
		if string(buf[:n]) != bellShort {
			continue
		}
		select {
		case rang <- struct{}{}:
		default:
		}
	}
}

func (b *bell) close() error {
	err := b.conn.Close()
	<-b.done
	if rmErr := os.Remove(b.path); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return err
}
