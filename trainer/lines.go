package trainer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// errTooLong ends a session: more than MaxLine bytes without a newline.
var errTooLong = fmt.Errorf("more than %d bytes without a newline, want one JSON object a line; the connection is closed", MaxLine)

// lines splits a stream at newlines, in bounded memory.
type lines struct{ r *bufio.Reader }

func newLines(r io.Reader) *lines { return &lines{bufio.NewReaderSize(r, MaxLine)} }

// next returns the next line with its newline, valid until the next call. A
// rest without a newline at the end of the stream is dropped: half a line says
// nothing.
func (l *lines) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errTooLong
	}
	if err != nil {
		return nil, err
	}
	return line, nil
}
