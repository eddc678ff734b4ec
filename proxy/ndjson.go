package proxy

import "bytes"

// ndjson splits an answer into lines, each a document of its own, wherever reads
// cut it; it keeps nothing of a line. Blank lines are passed over.
type ndjson struct {
	sink sseSink
	open bool // something of the line has come
}

func (l *ndjson) write(p []byte) {
	for len(p) > 0 {
		line, ends := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			line, ends = p[:i], true
			p = p[i+1:]
		} else {
			p = nil
		}
		if !l.open {
			line = bytes.TrimLeft(line, " \t\r")
		}
		if len(line) > 0 {
			l.piece(line)
		}
		if ends {
			l.end()
		}
	}
}

func (l *ndjson) piece(p []byte) {
	if !l.open {
		l.open = true
		l.sink.begin()
	}
	l.sink.data(p)
}

// end completes a line: at its line feed, and at the end of the answer.
func (l *ndjson) end() {
	if l.open {
		l.open = false
		l.sink.dispatch(false)
	}
}
