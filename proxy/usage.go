package proxy

// usageAsker is a dialect whose streams have usage when they are asked for it.
type usageAsker interface {
	// askUsage is what asks, as the first member of the request's body.
	askUsage() string
}

func (chat) askUsage() string        { return openaiAskUsage }
func (completions) askUsage() string { return openaiAskUsage }

const openaiAskUsage = `"stream_options":{"include_usage":true},`

// askUsage asks the upstream for usage where the client said nothing of it:
// neither yes nor no. The client then gets a stream without the event that it
// did not ask for (see usageStrip).
func (x *exchange) askUsage(s *requestScan) {
	d, ok := x.d.(usageAsker)
	if !ok || !x.p.cfg.InjectUsage || !x.body.replayable() || !s.stream || s.streamOptions || !s.json.whole() {
		return
	}
	x.body.put(d.askUsage())
	// What is compressed cannot be stripped.
	delete(x.header, "Accept-Encoding")
	x.asked = true
}

// maxHeld is the longest beginning of an event that is held until it is known
// not to be usage. Those of usage have a few hundred bytes.
const maxHeld = 64 << 10

// usageStrip takes the events that have usage and no choice out of a stream. It
// holds an event only until it has a choice or ends; no byte of others is changed
// or waits for the next event.
type usageStrip struct {
	sse  sse
	json jsonScan
	out  []byte // what may go on; valid until the next call
	held []byte // of the event being read

	begun    bool // the event's data has begun
	choices  bool // it has a list of choices
	choice   bool // with something in it
	usage    bool // and usage
	ended    bool // by the byte just read
	comment  bool // the line is one
	lineFeed bool // one that follows belongs to an event that was dropped
}

func newUsageStrip() *usageStrip {
	s := &usageStrip{}
	s.sse.sink = s
	return s
}

// filter is what may go on now that p has come.
func (s *usageStrip) filter(p []byte) []byte {
	s.out = s.out[:0]
	for i := range p {
		s.next(p[i : i+1])
	}
	return s.out
}

// end is what is left when the stream has ended.
func (s *usageStrip) end() []byte {
	s.out, s.ended = s.out[:0], false
	s.sse.end()
	if !s.ended || !s.only() {
		s.release()
	}
	return s.out
}

func (s *usageStrip) next(b []byte) {
	c := b[0]
	start := s.sse.state == sseName && s.sse.n == 0
	if start {
		s.comment = c == ':'
	}
	ofCR := s.sse.cr && c == '\n' // the line has ended before it
	blank := start && !ofCR && (c == '\n' || c == '\r')
	follows := s.lineFeed && c == '\n'
	s.lineFeed, s.ended = false, false
	s.sse.write(b)
	if follows {
		return
	}
	s.held = append(s.held, c)
	long := len(s.held) >= maxHeld
	s.choice = s.choice || long // it counts as one
	switch {
	case s.ended && s.only():
		s.held, s.lineFeed = s.held[:0], s.sse.cr
	case s.ended, s.begun && s.choice, long,
		!s.begun && (s.comment || blank || ofCR && len(s.held) == 1):
		s.release()
	}
	if s.ended {
		s.begun = false
	}
}

func (s *usageStrip) release() {
	s.out = append(s.out, s.held...)
	s.held = s.held[:0]
}

// only says that the event was usage and nothing else.
func (s *usageStrip) only() bool {
	return s.json.whole() && s.choices && !s.choice && s.usage
}

// begin, data and dispatch make it an sseSink.
func (s *usageStrip) begin() {
	s.begun, s.choices, s.choice, s.usage = true, false, false, false
	s.json.reset(s)
}

func (s *usageStrip) data(p []byte) { s.json.write(p) }

func (s *usageStrip) dispatch(isError bool) {
	s.ended = true
	s.choice = s.choice || isError
}

// child and value make it a shape.
func (s *usageStrip) child(parent node, key []byte) node {
	if parent == nodeRoot {
		switch string(key) {
		case "choices":
			return nodeChoice
		case "usage":
			return nodeOwn
		}
	}
	return 0
}

func (s *usageStrip) value(f found) {
	switch {
	case f.node == nodeOwn:
		s.usage = f.kind == '{'
	case f.array:
		s.choice = true
	default:
		s.choices = f.kind == '['
	}
}
