package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// event is one line of events.jsonl. t_us counts from the start of the demo.
type event struct {
	T     int64  `json:"t_us"`
	Phase string `json:"phase"`
	// Kind is arrive, first, token (the client's), order, ack, confirm, bound,
	// bound_set, hold, release, reject (the sidecar's) or sample (the auditor's).
	// confirm is the end of a handover; its result says whether it came.
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Bytes  int64  `json:"bytes"`
	Epoch  uint64 `json:"epoch,omitempty"`
	Shrink bool   `json:"shrink,omitempty"`
	How    string `json:"how,omitempty"`
	Result string `json:"result,omitempty"`
}

// recorder collects what clients see; its methods are safe for concurrent use.
type recorder struct {
	mu     sync.Mutex
	phase  string
	epoch  time.Time // t_us 0
	events []event
	sent   map[string]time.Time
	recent []time.Duration // TTFTs since takeRecent, for the live table
}

func newRecorder(phase string, epoch time.Time) *recorder {
	return &recorder{phase: phase, epoch: epoch, sent: map[string]time.Time{}}
}

// observe is the client's callback.
func (r *recorder) observe(kind, id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch kind {
	case "arrive":
		r.sent[id] = at
	case "first":
		r.recent = append(r.recent, at.Sub(r.sent[id]))
	}
	r.events = append(r.events, event{T: at.Sub(r.epoch).Microseconds(), Phase: r.phase, Kind: kind, ID: id})
}

// takeRecent returns the TTFTs since the last call.
func (r *recorder) takeRecent() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	recent := r.recent
	r.recent = nil
	return recent
}

// addSidecar adds what the sidecar said, addSamples what the auditor counted.
// Both are called when the phase is over.
func (r *recorder) addSidecar(events []sidecarEvent) {
	for _, e := range events {
		id := e.ID
		if id == "" {
			id = e.Owner
		}
		kind := e.Kind
		if kind == "handover" { // the device has shown what the order asked for, or why not is in result
			kind = "confirm"
		}
		r.events = append(r.events, event{
			T: e.at().Sub(r.epoch).Microseconds(), Phase: r.phase, Kind: kind, ID: id, Bytes: e.Bytes,
			Epoch: e.Epoch, Shrink: e.Shrink, How: e.How, Result: e.Result,
		})
	}
}

func (r *recorder) addSamples(samples []auditSample) {
	for _, s := range samples {
		t := s.At.Sub(r.epoch).Microseconds()
		r.events = append(r.events,
			event{T: t, Phase: r.phase, Kind: "sample", ID: "engine", Bytes: int64(s.Engine)},
			event{T: t, Phase: r.phase, Kind: "sample", ID: "trainer", Bytes: int64(s.Trainer)})
	}
}

// appendTo writes the events in order of time to the end of a file.
func (r *recorder) appendTo(path string) (err error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("demo: events: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("demo: events: %w", cerr)
		}
	}()
	slices.SortStableFunc(r.events, func(a, b event) int { return int(a.T - b.T) })
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for _, e := range r.events {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("demo: events: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("demo: events: %w", err)
	}
	return nil
}
