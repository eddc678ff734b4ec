package proxy

import "bytes"

// sseSink takes the parts of an event stream. data may come in several pieces.
type sseSink interface {
	begin()          // the first data (or error) field of an event follows
	data(p []byte)   // a piece of the event's data; lines are joined by "\n"
	dispatch(e bool) // the event is complete; e: it came in an "error" field
}

// sse splits an event stream into events in bounded memory, wherever reads cut
// it. Lines end with LF, CRLF or CR and nothing else; a CR at the end of a read
// ends its line at once, and an LF at the start of the next one belongs to it.
// Comments and other fields are passed over.
type sse struct {
	sink  sseSink
	state sseState
	name  [8]byte // a field's name so far
	n     int     // its length; len(name)+1 for a longer one
	bom   int     // bytes of a byte order mark seen; 3 when past the start
	cr    bool    // the last byte was a CR
	open  bool    // the event has data
	err   bool    // the event has an error field
}

type sseState uint8

const (
	sseName  sseState = iota // in a field's name, or at a line's start
	sseSpace                 // after the colon of a field that is read
	sseData                  // in its value
	sseSkip                  // in a line that is passed over
)

// sseWindow bounds the search for a line's end, so that streams of bare CR are
// not searched for LF again and again.
const sseWindow = 4096

const bom = "\xef\xbb\xbf"

func (s *sse) write(p []byte) {
	for s.bom < len(bom) && len(p) > 0 {
		if p[0] != bom[s.bom] {
			if s.bom > 0 {
				s.state = sseSkip // a part of a mark begins no known field
			}
			s.bom = len(bom)
			break
		}
		s.bom++
		p = p[1:]
	}
	for len(p) > 0 {
		if s.cr {
			s.cr = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		switch s.state {
		case sseName:
			s.inName(p[0])
			p = p[1:]
		case sseSpace:
			s.state = sseData
			if p[0] == ' ' {
				p = p[1:]
			}
		default:
			p = s.inValue(p)
		}
	}
}

// end says that the stream is over. An event without a blank line after it is
// complete too: clients that read line by line have seen it.
func (s *sse) end() {
	s.endLine()
	s.endEvent()
}

func (s *sse) inName(c byte) {
	switch {
	case c == '\n' || c == '\r':
		s.cr = c == '\r'
		s.endLine()
	case c == ':':
		s.field()
	case s.n < len(s.name):
		s.name[s.n] = c
		s.n++
	default:
		s.state = sseSkip
	}
}

// field begins a value.
func (s *sse) field() {
	s.state = sseSkip
	switch string(s.name[:s.n]) {
	case "error": // llama.cpp's way to end a stream that failed
		s.err = true
	case "data":
	default:
		return
	}
	s.state = sseSpace
	if s.open {
		s.sink.data([]byte{'\n'})
	} else {
		s.open = true
		s.sink.begin()
	}
}

func (s *sse) inValue(p []byte) []byte {
	w := p[:min(len(p), sseWindow)]
	end := bytes.IndexByte(w, '\n')
	if end >= 0 {
		w = w[:end]
	}
	if cr := bytes.IndexByte(w, '\r'); cr >= 0 {
		end, w = cr, w[:cr]
	}
	if s.state == sseData && len(w) > 0 {
		s.sink.data(w)
	}
	if end < 0 {
		return p[len(w):]
	}
	s.cr = p[end] == '\r'
	s.endLine()
	return p[end+1:]
}

func (s *sse) endLine() {
	blank := s.state == sseName && s.n == 0
	s.state, s.n = sseName, 0
	if blank {
		s.endEvent()
	}
}

func (s *sse) endEvent() {
	if s.open {
		s.sink.dispatch(s.err)
	}
	s.open, s.err = false, false
}
