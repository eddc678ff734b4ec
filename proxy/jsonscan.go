package proxy

// node says what a place in a JSON document means to a dialect; 0 is nothing.
// An array's elements have the node of the array.
type node uint8

// found is one value at a place with a node. Containers are reported when they
// open, scalars when they end.
type found struct {
	node  node
	kind  byte   // '{' '[' 's'(tring) 'n'(umber) 't'(rue) 'f'(alse) '0'(null)
	depth int    // containers around it
	array bool   // it is an element of an array
	text  []byte // a string's or number's beginning, decoded, at most len(jsonScan.buf)
	size  int    // a string's decoded length in bytes
}

// shape maps keys to nodes and takes what is found. The slices it is given are
// valid during the call only.
type shape interface {
	// child is the node of a key's value in an object that has the node parent;
	// key is nil for one that is too long to be known.
	child(parent node, key []byte) node
	value(found)
}

// rawShape is given a member's bytes in pieces, from the colon to its end. text says
// how many of a piece's first bytes stand for themselves in a string of the text.
type rawShape interface {
	begin(member node)
	piece(member node, p []byte, text int)
}

// nodeRoot is the node of a document that is an object.
const nodeRoot node = 1

// jsonScan reads one JSON document in pieces of any size, in bounded memory and
// without allocating. It is lenient: it finds what encoding/json would find in a
// valid document, and of an invalid one it may report a beginning.
type jsonScan struct {
	shape shape
	// raw, where it is there, sees the members of the document that have a node of
	// the request's text as they stand; member is the node of the present one.
	raw    rawShape
	member node
	state  jsonState
	depth  int
	stack  [maxDepth]frame
	// at is the node that the next value will have.
	at node
	// buf holds the beginning of a key, string, number or word; size counts all
	// of it.
	buf  [128]byte
	n    int
	size int
	key  bool
	uni  rune // of a \uXXXX being read
	unis int
}

type frame struct {
	node  node
	array bool
}

type jsonState uint8

const (
	jsonValue     jsonState = iota // a value
	jsonArrayOpen                  // a value or ]
	jsonObjOpen                    // a key or }
	jsonKey                        // a key
	jsonColon                      // :
	jsonAfter                      // , or the end of the container
	jsonString                     // inside a string
	jsonEscape                     // after a backslash
	jsonUnicode                    // inside \uXXXX
	jsonNumber                     // inside a number
	jsonWord                       // inside true, false, null
	jsonEnd                        // the document has ended
	jsonBad                        // not JSON, or deeper than maxDepth
)

// maxDepth is far above any real request; a deeper document is left unread.
const maxDepth = 200

// reset makes it ready for another document.
func (s *jsonScan) reset(sh shape) {
	s.shape, s.state, s.depth, s.at, s.member = sh, jsonValue, 0, 0, 0
}

// write reads the next piece.
func (s *jsonScan) write(p []byte) {
	for i, from := 0, 0; i < len(p); from = i {
		in, member := s.inText(), s.member
		switch s.state {
		case jsonString:
			i += s.inString(p[i:])
		case jsonNumber, jsonWord:
			if c := p[i]; isScalarByte(c) {
				s.keep(c)
				i++
			} else {
				s.endScalar() // and read c again
			}
		case jsonEnd, jsonBad:
			return
		default:
			s.byte(p[i])
			i++
		}
		if member != 0 { // not with the end of its key
			s.show(p[from:i], in)
		}
	}
}

// show gives raw a piece that stood in a string of the text's node in, or in none.
func (s *jsonScan) show(p []byte, in node) {
	text := 0
	if in >= nodeText && in < nodeMedia {
		if text = len(p); s.state != jsonString {
			text-- // the quote or the backslash that ended it
		}
	}
	s.raw.piece(s.member, p, text)
	if s.depth == 1 && s.state == jsonAfter {
		s.member = 0
	}
}

// end says that the document is complete: a bare number ends here.
func (s *jsonScan) end() {
	if s.state == jsonNumber || s.state == jsonWord {
		s.endScalar()
	}
}

// whole says that a whole document was read.
func (s *jsonScan) whole() bool { return s.state == jsonEnd }

// inText is the node of the string value in which the document stands, or 0.
func (s *jsonScan) inText() node {
	switch s.state {
	case jsonString, jsonEscape, jsonUnicode:
		if !s.key {
			return s.at
		}
	}
	return 0
}

// byte handles everything outside strings, numbers and words.
func (s *jsonScan) byte(c byte) {
	switch s.state {
	case jsonEscape:
		s.escape(c)
		return
	case jsonUnicode:
		s.unicode(c)
		return
	}
	if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
		return
	}
	switch {
	case s.state == jsonValue, s.state == jsonArrayOpen && c != ']':
		s.begin(c)
	case (s.state == jsonObjOpen || s.state == jsonKey) && c == '"':
		s.state, s.key, s.n, s.size = jsonString, true, 0, 0
	case s.state == jsonColon && c == ':':
		s.state = jsonValue
	case s.state == jsonAfter && c == ',':
		s.next()
	case c == ']' && (s.state == jsonArrayOpen || s.state == jsonAfter) && s.top().array,
		c == '}' && (s.state == jsonObjOpen || s.state == jsonAfter) && !s.top().array:
		s.depth--
		s.state = s.after()
	default:
		s.state = jsonBad
	}
}

func (s *jsonScan) top() frame { return s.stack[s.depth-1] }

// after is the state after a value.
func (s *jsonScan) after() jsonState {
	if s.depth == 0 {
		return jsonEnd
	}
	return jsonAfter
}

// next goes from a comma to the next member.
func (s *jsonScan) next() {
	if t := s.top(); t.array {
		s.state, s.at = jsonValue, t.node
	} else {
		s.state = jsonKey
	}
}

// begin starts a value.
func (s *jsonScan) begin(c byte) {
	switch {
	case c == '{' || c == '[':
		s.open(c)
	case c == '"':
		s.state, s.key, s.n, s.size = jsonString, false, 0, 0
	case c == '-' || (c >= '0' && c <= '9'):
		s.state, s.n, s.size = jsonNumber, 0, 0
		s.keep(c)
	case c == 't' || c == 'f' || c == 'n':
		s.state, s.n, s.size = jsonWord, 0, 0
		s.keep(c)
	default:
		s.state = jsonBad
	}
}

func (s *jsonScan) open(c byte) {
	if s.depth == maxDepth {
		s.state = jsonBad
		return
	}
	if s.depth == 0 && c == '{' {
		s.at = nodeRoot
	} else {
		s.emit(c)
	}
	s.stack[s.depth] = frame{node: s.at, array: c == '['}
	s.depth++
	s.state = jsonObjOpen
	if c == '[' {
		s.state = jsonArrayOpen
	}
}

func (s *jsonScan) emit(kind byte) {
	if s.at == 0 {
		return
	}
	s.shape.value(found{
		node: s.at, kind: kind, depth: s.depth, text: s.buf[:s.n], size: s.size,
		array: s.depth > 0 && s.top().array,
	})
}

func (s *jsonScan) keep(c byte) {
	s.size++
	if s.n < len(s.buf) {
		s.buf[s.n] = c
		s.n++
	}
}

func isScalarByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

func (s *jsonScan) endScalar() {
	kind := byte('n')
	if s.state == jsonWord {
		switch string(s.buf[:s.n]) {
		case "true":
			kind = 't'
		case "false":
			kind = 'f'
		case "null":
			kind = '0'
		default:
			s.state = jsonBad
			return
		}
	}
	s.emit(kind)
	s.state = s.after()
}
