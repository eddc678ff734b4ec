package proxy

import (
	"math"
	"strconv"
)

// requestScan finds in a request's body what its cost depends on. It keeps a
// few numbers, whatever the body's size.
type requestScan struct {
	json    jsonScan
	dialect dialect

	model         string
	stream        bool
	streamOptions bool // they are there, whatever they say
	includeUsage  bool
	maxTokens     int
	maxCompletion int
	n, bestOf     int
	text          [textSlots]textCount
	prefix        prefix
}

type textCount struct {
	bytes, ids, prompts int
	media               [mediaKinds]int
}

func newRequestScan(d dialect) *requestScan {
	s := &requestScan{dialect: d}
	s.json.reset(s)
	s.json.raw = s
	return s
}

func (s *requestScan) child(parent node, key []byte) node { return s.dialect.request(parent, key) }

func (s *requestScan) value(f found) {
	if f.node >= nodeMedia {
		s.media(f)
		return
	}
	if f.node >= nodeText {
		s.prompt(&s.text[f.node-nodeText], f)
		return
	}
	switch f.node {
	case nodeModel:
		if s.model = ""; f.kind == 's' {
			s.model = string(f.text)
		}
	case nodeStream:
		s.stream = f.kind == 't'
	case nodeStreamOptions:
		s.streamOptions = true
	case nodeIncludeUsage:
		s.includeUsage = f.kind == 't'
	case nodeMaxTokens:
		s.maxTokens = f.count()
	case nodeMaxCompletionTokens:
		s.maxCompletion = f.count()
	case nodeN:
		s.n = f.count()
	case nodeBestOf:
		s.bestOf = f.count()
	}
}

// prompt counts text, token ids, and the prompts of a list of them: each string
// or inner list that is an element of the top-level value.
func (s *requestScan) prompt(t *textCount, f found) {
	if f.depth == 1 {
		*t = textCount{}
	}
	switch f.kind {
	case 's':
		t.bytes += f.size
	case 'n':
		if f.array {
			t.ids++
		}
	}
	if f.depth == 2 && f.array && (f.kind == 's' || f.kind == '[') {
		t.prompts++
	}
}

// media counts images and the like: each object or string, alone or in a list.
func (s *requestScan) media(f found) {
	if at := f.node - nodeMedia; f.kind == '{' || f.kind == 's' && f.size > 0 {
		s.text[at/mediaKinds].media[at%mediaKinds]++
	}
}

// fill copies what was found into a request.
func (s *requestScan) fill(r *Request) {
	r.Model, r.Stream, r.MaxTokens = s.model, s.stream, s.maxTokens
	if s.maxCompletion > 0 {
		r.MaxTokens = s.maxCompletion
	}
	for _, t := range s.text {
		r.PromptBytes += t.bytes
		r.Media.Images += t.media[mediaImage]
		r.Media.Audios += t.media[mediaAudio]
		r.Media.Videos += t.media[mediaVideo]
		r.Media.Files += t.media[mediaFile]
	}
	r.ToolBytes = s.text[slotTools].bytes
	if at := s.json.inText(); at >= nodeText && at < nodeMedia {
		r.PromptBytes += s.json.size // of a body that is judged by its beginning
	}
	r.PromptTokens = s.text[slotPrompt].ids
	r.Sequences = max(s.n, s.bestOf, 1) * max(s.text[slotPrompt].prompts, 1)
	r.Prefix = s.marks(r)
}

// count is a number as a count: whole, not negative, not above 2^31-1; else 0.
func (f found) count() int {
	if f.kind != 'n' || f.size > len(f.text) {
		return 0
	}
	n := 0
	for _, c := range f.text {
		if c < '0' || c > '9' || n > math.MaxInt32/10 {
			return countFloat(f.text)
		}
		n = n*10 + int(c-'0')
	}
	return min(n, math.MaxInt32)
}

// countFloat reads 1e3 and 100.0, which JSON takes for whole numbers too.
func countFloat(text []byte) int {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil && v == 0 || v < 0 || v != math.Trunc(v) {
		return 0
	}
	return int(min(v, math.MaxInt32))
}
