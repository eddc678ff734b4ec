package demo

import (
	"encoding/json"
	"fmt"
	"time"
)

// trainLine is one line of the training job's log (demo/train.py --log).
type trainLine struct {
	T    int64  `json:"t_unix_us"`
	Kind string `json:"kind"` // ready, step, curve
	// ready: what the job is.
	PID      int   `json:"pid"`
	Baseline int64 `json:"baseline_bytes"`
	// ready and step: the floor in force at the line.
	Floor int64 `json:"floor_bytes"`
	// step: one optimizer step; Samples counts from the job's start.
	Step    int     `json:"step"`
	Loss    float64 `json:"loss"`
	Samples int     `json:"samples"`
	Seconds float64 `json:"seconds"`
	// curve: training speed under one budget.
	Budget int64   `json:"budget_bytes"`
	Rate   float64 `json:"samples_per_s"`
}

func (l trainLine) at() time.Time { return time.UnixMicro(l.T) }

// trainLog is all that the training job has logged so far.
type trainLog struct {
	tail  *tail
	ready *trainLine
	steps []trainLine
	curve []trainLine
}

// refresh reads what is new.
func (l *trainLog) refresh() error {
	return l.tail.more(func(line []byte) error {
		var t trainLine
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("train log %.80q: %w, want a JSON object", line, err)
		}
		switch t.Kind {
		case "ready":
			l.ready = &t
		case "step":
			l.steps = append(l.steps, t)
		case "curve":
			l.curve = append(l.curve, t)
		}
		return nil
	})
}

// samplesAt is the number of samples trained on at a moment, linear inside an
// optimizer step; the job's first step begins at the ready line.
func (l *trainLog) samplesAt(at time.Time) float64 {
	if l.ready == nil {
		return 0
	}
	before, seen := l.ready.at(), 0.0
	for _, s := range l.steps {
		if s.at().After(at) {
			span := s.at().Sub(before)
			if span <= 0 || at.Before(before) {
				return seen
			}
			return seen + (float64(s.Samples)-seen)*at.Sub(before).Seconds()/span.Seconds()
		}
		before, seen = s.at(), float64(s.Samples)
	}
	return seen
}

// between are the steps that ended in [from, to].
func (l *trainLog) between(from, to time.Time) []trainLine {
	var in []trainLine
	for _, s := range l.steps {
		if !s.at().Before(from) && !s.at().After(to) {
			in = append(in, s)
		}
	}
	return in
}

// batchEnd is the end of the optimizer step that was running at a moment; ok is
// false when the log ends before.
func (l *trainLog) batchEnd(at time.Time) (end time.Time, ok bool) {
	for _, s := range l.steps {
		if s.at().After(at) {
			return s.at(), true
		}
	}
	return time.Time{}, false
}
