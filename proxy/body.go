package proxy

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// errBodyTooLarge is returned by readBody for a body above MaxBodyBytes.
var errBodyTooLarge = errors.New("request body above proxy.max_body_bytes")

// body is a request's body: all of it, or its beginning and the rest to come.
// Its bytes are never changed once read: a transport may still read them after
// an attempt has failed.
type body struct {
	read  []byte
	rest  io.Reader // nil when read is all
	taken int64     // of the bodyMemory; whoever has the body gives it back

	extra string // goes in at the given place, which is 0 when there is none
	at    int
}

// put adds a member to a whole body that is a JSON object, as its first.
func (b *body) put(member string) {
	b.extra, b.at = member, bytes.IndexByte(b.read, '{')+1
}

// readBody reads up to scanBytes of r and shows each piece to scan as it comes.
// size is the declared length, or -1. A body that is longer keeps the rest
// unread, and so does one for which memory has no room. max, when above 0, is
// the length above which it gives up. What the body took of memory is in it,
// errors or not.
func readBody(r io.Reader, size, scanBytes, max int64, memory *bodyMemory, scan func([]byte)) (body, error) {
	if max > 0 && size > max {
		return body{}, errBodyTooLarge
	}
	b := body{read: make([]byte, 0, firstCap(size))}
	for {
		if len(b.read) == cap(b.read) {
			// By steps, not the declared size at once: a client may declare much and
			// send nothing.
			room := min(growth*int64(cap(b.read)), scanBytes+1)
			if size >= int64(len(b.read)) {
				room = min(room, size+1)
			}
			if !memory.take(room - b.taken) {
				b.rest = atMost(r, b.read, max)
				return b, nil
			}
			b.taken = room
			grown := make([]byte, len(b.read), room)
			copy(grown, b.read)
			b.read = grown
		}
		n, err := r.Read(b.read[len(b.read):cap(b.read)])
		scan(b.read[len(b.read) : len(b.read)+n])
		b.read = b.read[:len(b.read)+n]
		if max > 0 && int64(len(b.read)) > max {
			return b, errBodyTooLarge
		}
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		if int64(len(b.read)) > scanBytes {
			b.rest = atMost(r, b.read, max)
			return b, nil
		}
	}
}

// atMost is the rest of a body of which read was read, and an error where all of
// it is longer than max, when that is above 0.
func atMost(rest io.Reader, read []byte, max int64) io.Reader {
	if max <= 0 {
		return rest
	}
	return &shortBody{rest, max - int64(len(read))}
}

// shortBody ends in an error when more than left bytes come.
type shortBody struct {
	io.Reader
	left int64
}

func (s *shortBody) Read(p []byte) (int, error) {
	if int64(len(p)) > s.left+1 {
		p = p[:s.left+1]
	}
	n, err := s.Reader.Read(p)
	if s.left -= int64(n); s.left < 0 {
		s.left = 0
		return n - 1, errBodyTooLarge
	}
	return n, err
}

const (
	// usualBody is what every request has room for at once, as its connection has;
	// all beyond it is taken of the body memory.
	usualBody = 4 << 10
	// growth is by what factor room grows: little is copied, and a client has at
	// most so many times what it sent.
	growth = 4
)

// firstCap is room for a small body, and for the byte more that shows its end.
func firstCap(size int64) int64 {
	if size < 0 || size > usualBody {
		return usualBody
	}
	return size + 1
}

// open returns a new reader of the whole body.
func (b body) open() io.ReadCloser {
	if b.extra != "" {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b.read[:b.at]), strings.NewReader(b.extra), bytes.NewReader(b.read[b.at:])))
	}
	if b.rest == nil {
		return io.NopCloser(bytes.NewReader(b.read))
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(b.read), b.rest))
}

// replayable says that open may be called again.
func (b body) replayable() bool { return b.rest == nil }

// length is what the upstream is told: the real one, or the declared one of a
// body that is still coming.
func (b body) length(declared int64) int64 {
	if b.rest == nil {
		return int64(len(b.read) + len(b.extra))
	}
	return declared
}
