package telemetry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Event is one line of the events file. T is Unix time in microseconds, so that
// files of several processes of one machine can be laid side by side; every
// duration beside it was taken on a monotonic clock.
type Event struct {
	T       int64  `json:"t_unix_us"`
	Kind    string `json:"kind"`
	ID      string `json:"id,omitempty"`
	Owner   string `json:"owner,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Bytes   int64  `json:"bytes"`
	From    int64  `json:"from_bytes,omitempty"`
	Freed   int64  `json:"freed_bytes,omitempty"`
	Shrink  bool   `json:"shrink,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Stage   string `json:"stage,omitempty"`
	How     string `json:"how,omitempty"`
	Result  string `json:"result,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	TookUS  int64  `json:"took_us,omitempty"`
	AckedUS int64  `json:"acked_us,omitempty"`
}

// Events appends events to a file from one goroutine of its own, so that a slow
// disk delays nobody. A nil *Events takes events and writes nothing.
type Events struct {
	queue   chan Event
	file    *os.File
	metrics *Metrics
	done    sync.WaitGroup
}

// eventQueue is a few seconds of events at the busiest.
const eventQueue = 16384

// OpenEvents makes or empties the file. metrics may be nil.
func OpenEvents(path string, metrics *Metrics) (*Events, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("telemetry.events: %w", err)
	}
	e := &Events{queue: make(chan Event, eventQueue), file: f, metrics: metrics}
	e.done.Add(1)
	go e.write() // ends when Close closes the queue
	return e, nil
}

// Add queues one event. It never blocks: with the queue full the event is
// counted in lull_events_dropped_total and dropped.
func (e *Events) Add(ev Event) {
	if e == nil {
		return
	}
	select {
	case e.queue <- ev:
	default:
		e.lost(1)
	}
}

// Close writes what is queued and closes the file; Add must not be called after.
func (e *Events) Close() error {
	if e == nil {
		return nil
	}
	close(e.queue)
	e.done.Wait()
	return e.file.Close()
}

// write flushes whenever the queue is empty, so that a reader that follows the
// file sees each event at once.
func (e *Events) write() {
	defer e.done.Done()
	out := bufio.NewWriterSize(e.file, 64<<10)
	encode := json.NewEncoder(out)
	unsaid := 0 // events in the buffer
	flush := func() {
		if out.Flush() != nil {
			e.lost(unsaid)
			out.Reset(e.file) // a writer keeps its first error; the disk may have room again
		}
		unsaid = 0
	}
	for ev := range e.queue {
		if unsaid++; encode.Encode(ev) != nil {
			flush()
		}
		if len(e.queue) == 0 {
			flush()
		}
	}
	flush()
}

// lost counts events that no file has: a full disk loses events, never a request.
func (e *Events) lost(n int) {
	if e.metrics != nil {
		e.metrics.dropped.Add(float64(n))
	}
}
