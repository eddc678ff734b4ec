package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// sidecarEvent is one line of the sidecar's events file (telemetry.Event).
type sidecarEvent struct {
	T       int64  `json:"t_unix_us"`
	Kind    string `json:"kind"`
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	Epoch   uint64 `json:"epoch"`
	Bytes   int64  `json:"bytes"`
	From    int64  `json:"from_bytes"`
	Freed   int64  `json:"freed_bytes"`
	Shrink  bool   `json:"shrink"`
	Reason  string `json:"reason"`
	How     string `json:"how"`
	Result  string `json:"result"`
	Outcome string `json:"outcome"`
	TookUS  int64  `json:"took_us"`
	AckedUS int64  `json:"acked_us"`
}

func (e sidecarEvent) at() time.Time { return time.UnixMicro(e.T) }

// tail reads the complete lines that a growing JSONL file has gained.
type tail struct {
	path string
	file *os.File
	part []byte // an unfinished last line
	line int
}

func openTail(path string) (*tail, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", path, err)
	}
	return &tail{path: path, file: f}, nil
}

func (t *tail) close() {
	if t != nil {
		_ = t.file.Close()
	}
}

// more calls each with every new whole line. An error of each gets file and
// line in front.
func (t *tail) more(each func(line []byte) error) error {
	br := bufio.NewReader(t.file)
	for {
		text, err := br.ReadBytes('\n')
		t.part = append(t.part, text...)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow %s: %w", t.path, err)
		}
		t.line++
		line := bytes.TrimSpace(t.part)
		if len(line) > 0 {
			if err := each(line); err != nil {
				return fmt.Errorf("%s:%d: %w", t.path, t.line, err)
			}
		}
		t.part = t.part[:0]
	}
}

// sidecarLog is all that the sidecar has said so far.
type sidecarLog struct {
	tail   *tail
	events []sidecarEvent
}

// refresh reads what is new.
func (l *sidecarLog) refresh() error {
	return l.tail.more(func(line []byte) error {
		var e sidecarEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("event %.80q: %w, want a JSON object", line, err)
		}
		l.events = append(l.events, e)
		return nil
	})
}

// readSidecarLog reads a finished events file.
func readSidecarLog(path string) ([]sidecarEvent, error) {
	t, err := openTail(path)
	if err != nil {
		return nil, err
	}
	defer t.close()
	l := sidecarLog{tail: t}
	err = l.refresh()
	return l.events, err
}
