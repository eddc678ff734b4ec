package engine

import (
	"errors"
	"fmt"
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
	rang chan struct{}
	done chan struct{}
}

// Shortages returns a channel that gets a value when an allocation fell short in
// the engine; several that follow closely are one. The first call starts the
// listening, Close ends it and closes the channel.
func (e *lullVLLM) Shortages() (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bell == nil {
		b, err := listenBell(e.base + ".sidecar")
		if err != nil {
			return nil, fmt.Errorf("engine %s: shortages: %w", e.cfg.Name, err)
		}
		e.bell = b
	}
	return e.bell.rang, nil
}

func listenBell(path string) (*bell, error) {
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
	b := &bell{conn: conn, path: path, rang: make(chan struct{}, 1), done: make(chan struct{})}
	go b.hear()
	return b, nil
}

// hear ends when conn closes; close waits for it.
func (b *bell) hear() {
	defer close(b.done)
	defer close(b.rang)
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
		case b.rang <- struct{}{}:
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
