package proxy

import "time"

// tap reads a copy of an answer and keeps what an account needs of it. It never
// holds or changes a byte, its memory does not grow, and what it cannot read
// costs a number, never the stream.
type tap struct {
	dialect dialect
	mode    tapMode
	sink    tapSink
	json    jsonScan
	sse     sse
	lines   ndjson
	now     time.Time // when the bytes being read were written to the client

	head  [len(doneMark)]byte // the beginning of an event's data
	size  int                 // the data's length
	event eventFacts          // of the event (or whole answer) being read
	tapCounts
}

// tapSink is told of events as they end.
type tapSink interface {
	content(at time.Time, tokens int)
	step(at time.Time)
}

// eventFacts is what one event said.
type eventFacts struct{ content, choice, role, finish, usage bool }

// tapCounts is what a tap knows at the end; see Record for what each counts.
type tapCounts struct {
	contents, events          int
	firstContent, lastContent time.Time
	firstEvent, lastEvent     time.Time

	usage                  bool // the number of output tokens was seen
	prompt, cached, output int  // the largest of each
	beside, written        int  // cached tokens that prompt leaves out; likewise
	told                   int  // tokens told to the sink

	failed     bool // an error came inside the answer
	terminated bool // [DONE], or the dialect's own end
	opaque     int  // events (or answers) that were no JSON
}

type tapMode uint8

const (
	tapOff   tapMode = iota // only bytes are counted
	tapSSE                  // an event stream
	tapLines                // a JSON document a line
	tapJSON                 // one JSON document
)

const doneMark = "[DONE]"

func newTap(d dialect, mode tapMode, sink tapSink) *tap {
	t := &tap{dialect: d, mode: mode, sink: sink}
	t.sse.sink, t.lines.sink = t, t
	t.json.reset(t)
	return t
}

// write reads bytes that were written to the client at the given time.
func (t *tap) write(p []byte, at time.Time) {
	t.now = at
	switch t.mode {
	case tapSSE:
		t.sse.write(p)
	case tapLines:
		t.lines.write(p)
	case tapJSON:
		t.json.write(p)
	}
}

// end says that the answer is over. What it ends was written at the time of the
// last write.
func (t *tap) end() {
	switch t.mode {
	case tapSSE:
		t.sse.end()
	case tapLines:
		t.lines.end()
	case tapJSON:
		if t.now.IsZero() {
			return // nothing came
		}
		t.json.end()
		t.settle()
	}
}

// begin, data and dispatch make the tap an sseSink.
func (t *tap) begin() {
	t.size, t.event = 0, eventFacts{}
	t.json.reset(t)
}

func (t *tap) data(p []byte) {
	if t.size < len(t.head) {
		copy(t.head[t.size:], p)
	}
	t.size += len(p)
	t.json.write(p)
}

func (t *tap) dispatch(isError bool) {
	if t.size == len(doneMark) && string(t.head[:]) == doneMark {
		t.terminated = true
		return
	}
	t.failed = t.failed || isError
	t.json.end()
	t.settle()
}

// settle counts an event that is complete.
func (t *tap) settle() {
	if !t.json.whole() {
		t.opaque++
	}
	e := t.event
	if !e.content && (!e.choice || e.role || e.finish) {
		return
	}
	t.events++
	if t.events == 1 {
		t.firstEvent = t.now
	}
	t.lastEvent = t.now
	t.sink.step(t.now)
	if !e.content {
		return
	}
	t.contents++
	if t.contents == 1 {
		t.firstContent = t.now
	}
	t.lastContent = t.now
	tokens := 1
	if e.usage {
		tokens = max(1, t.output-t.told)
	}
	t.told += tokens
	t.sink.content(t.now, tokens)
}

// child and value make the tap the shape of an answer.
func (t *tap) child(parent node, key []byte) node { return t.dialect.answer(parent, key) }

func (t *tap) value(f found) {
	switch f.node {
	case nodeContent:
		if f.hasContent() {
			t.event.content = true
		}
	case nodeChoice:
		t.event.choice = t.event.choice || f.kind == '{'
	case nodeRole:
		t.event.role = t.event.role || f.kind == 's'
	case nodeFinish:
		t.event.finish = t.event.finish || f.kind != '0'
	case nodeDone:
		t.event.choice = t.event.choice || f.kind == 'f'
		t.event.finish = t.event.finish || f.kind == 't'
		t.terminated = t.terminated || f.kind == 't'
	case nodeError:
		t.failed = t.failed || f.hasContent() || f.kind == '{'
	case nodeType:
		if f.kind == 's' {
			m := t.dialect.typed(f.text)
			t.failed = t.failed || m&meansFailure != 0
			t.terminated = t.terminated || m&meansEnd != 0
		}
	default:
		t.count(f)
	}
}

// count reads the numbers of usage. The largest counts, not the sum: engines
// repeat a running total.
func (t *tap) count(f found) {
	if f.kind != 'n' {
		return
	}
	switch n := f.count(); f.node {
	case nodePromptTokens:
		t.prompt = max(t.prompt, n)
	case nodeCachedTokens:
		t.cached = max(t.cached, n)
	case nodeCachedBeside:
		t.beside = max(t.beside, n)
	case nodeCacheWritten:
		t.written = max(t.written, n)
	case nodeOutputTokens:
		t.output, t.usage, t.event.usage = max(t.output, n), true, true
	case nodeOutputAdded:
		t.output, t.usage, t.event.usage = t.output+n, true, true
	}
}

// hasContent says whether a value under nodeContent has something in it. The
// values inside an object come here too, so an object itself need not count
// unless it is an element of a list, as a tool call is.
func (f found) hasContent() bool {
	switch f.kind {
	case 's':
		return f.size > 0
	case 'n', 't':
		return true
	case '{', '[':
		return f.array
	}
	return false
}
