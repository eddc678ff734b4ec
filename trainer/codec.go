package trainer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxLine is the longest line in bytes, its newline included.
const MaxLine = 64 << 10

// types holds each message's reader, in the order in which an error line names
// them.
var types = []struct {
	name string
	read func(fields) Message
}{
	{"hello", readHello}, {"welcome", readWelcome}, {"budget", readBudget}, {"ack", readAck},
	{"request", readRequest}, {"refused", readRefused}, {"report", readReport}, {"pace", readPace},
	{"yield", readYield}, {"drain", readDrain}, {"bye", readBye}, {"ping", readPing}, {"pong", readPong},
	{"error", readErrorLine},
}

func typeNames() string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.name
	}
	return strings.Join(names, ", ")
}

// Decode reads one line, with or without its newline. A line that is no valid
// message gives a *LineError, which holds the error line to answer with.
func Decode(line []byte) (Message, error) {
	const want = "want one JSON object in UTF-8"
	if !utf8.Valid(line) || !json.Valid(line) {
		return nil, &LineError{What: "line", Where: "json", Rule: "not valid, " + want}
	}
	if k := kind(line); k != "an object" {
		return nil, &LineError{What: "line", Where: "json", Rule: "got " + k + ", " + want}
	}
	var fault *LineError
	f := fields{err: &fault}
	if err := json.Unmarshal(line, &f.raw); err != nil {
		return nil, &LineError{What: "line", Where: "json", Rule: "not valid, " + want}
	}
	read := reader(&f)
	if read == nil {
		return nil, &LineError{What: "line", Where: "type", Rule: "unknown, want one of " + typeNames()}
	}
	m := read(f)
	if fault != nil {
		return nil, fault
	}
	return m, nil
}

// reader finds the reader of f's type and names f after it; nil when there is
// none.
func reader(f *fields) func(fields) Message {
	raw := f.raw["type"]
	if len(raw) == 0 || raw[0] != '"' {
		return nil
	}
	var name string
	_ = json.Unmarshal(raw, &name)
	for _, t := range types {
		if t.name == name {
			f.what = name
			return t.read
		}
	}
	return nil
}

// Encode writes one line with its newline. The error names a number that JSON
// cannot hold or a line that is too long; nothing of it may be sent.
func Encode(m Message) ([]byte, error) {
	w := writer{b: make([]byte, 0, 256)}
	w.b = append(w.b, '{')
	w.text("type", m.Type())
	m.write(&w)
	w.b = append(w.b, '}', '\n')
	if w.bad != "" {
		return nil, fmt.Errorf("trainer: encode %s: %s; the line is not sent", m.Type(), w.bad)
	}
	if len(w.b) > MaxLine {
		return nil, fmt.Errorf("trainer: encode %s: %d bytes, want at most %d; the line is not sent",
			m.Type(), len(w.b), MaxLine)
	}
	return w.b, nil
}
