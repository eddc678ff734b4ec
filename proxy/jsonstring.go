package proxy

import (
	"bytes"
	"unicode/utf8"
)

// inString takes bytes of a string up to its end, an escape or the end of p.
func (s *jsonScan) inString(p []byte) int {
	// A short window keeps a string full of escapes from being searched again and
	// again for its far end.
	run := p[:min(len(p), 4096)]
	if q := bytes.IndexByte(run, '"'); q >= 0 {
		run = run[:q]
	}
	if e := bytes.IndexByte(run, '\\'); e >= 0 {
		run = run[:e]
	}
	s.n += copy(s.buf[s.n:], run)
	s.size += len(run)
	if len(run) == len(p) {
		return len(run)
	}
	switch p[len(run)] {
	case '"':
		s.endString()
	case '\\':
		s.state = jsonEscape
	default: // the window's end
		return len(run)
	}
	return len(run) + 1
}

func (s *jsonScan) endString() {
	if s.key {
		k := s.buf[:s.n]
		if s.size > s.n {
			k = nil
		}
		s.at = s.shape.child(s.stack[s.depth-1].node, k)
		if s.raw != nil && s.depth == 1 {
			if s.member = 0; s.at >= nodeText && s.at < nodeMedia {
				s.member = s.at
				s.raw.begin(s.at)
			}
		}
		s.state = jsonColon
		return
	}
	s.emit('s')
	s.state = s.after()
}

// escape takes the byte after a backslash.
func (s *jsonScan) escape(c byte) {
	s.state = jsonString
	switch c {
	case '"', '\\', '/':
		s.keep(c)
	case 'n':
		s.keep('\n')
	case 't':
		s.keep('\t')
	case 'r':
		s.keep('\r')
	case 'b':
		s.keep('\b')
	case 'f':
		s.keep('\f')
	case 'u':
		s.state, s.uni, s.unis = jsonUnicode, 0, 0
	default:
		s.state = jsonBad
	}
}

// unicode takes a digit of \uXXXX.
func (s *jsonScan) unicode(c byte) {
	var d byte
	switch {
	case c >= '0' && c <= '9':
		d = c - '0'
	case c >= 'a' && c <= 'f':
		d = c - 'a' + 10
	case c >= 'A' && c <= 'F':
		d = c - 'A' + 10
	default:
		s.state = jsonBad
		return
	}
	s.uni = s.uni<<4 | rune(d)
	if s.unis++; s.unis < 4 {
		return
	}
	s.state = jsonString
	if s.uni >= 0xd800 && s.uni < 0xe000 {
		// Half of a surrogate pair, which is 4 bytes in UTF-8. Its text is not kept
		// right: no key or model that Lull knows has one.
		s.keep('?')
		s.keep('?')
		return
	}
	var b [utf8.UTFMax]byte
	for _, c := range b[:utf8.EncodeRune(b[:], s.uni)] {
		s.keep(c)
	}
}
