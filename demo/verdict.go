package demo

import (
	"time"

	"github.com/lull-project/lull/size"
)

// yardstick is what the auditor judges by: how big the device is and what each
// process had before it took any of it.
type yardstick struct {
	Capacity                        size.Bytes
	EngineBaseline, TrainerBaseline size.Bytes
	// Floor is what the trainer cannot give back at its start; its ceiling is above
	// it. Risen are the higher floors that it was granted since.
	Floor size.Bytes
	Risen floors
}

// floorAt is the floor in force at a moment.
func (d yardstick) floorAt(at time.Time) size.Bytes { return max(d.Floor, d.Risen.at(at)) }

// auditSample is one counted sample, baselines taken off.
type auditSample struct {
	At              time.Time
	Engine, Trainer size.Bytes
}

// total is all bytes on the device.
func (s auditSample) total() size.Bytes { return s.Engine + s.Trainer }

// violation is one counted sample that should not be.
type violation struct {
	At time.Time
	// What is device (more than the capacity) or ceiling (the trainer above what it
	// promised).
	What       string
	Got, Limit size.Bytes
	Epoch      uint64 // of the promise
}

// verdict is the auditor's judgement of one phase.
type verdict struct {
	Samples    []auditSample
	Discarded  int // the engine moved while the trainer was read
	Lost       int // a process could not be read
	MaxDevice  size.Bytes
	Violations []violation
	// Rebounds are the promises (epochs) that at least one sample broke.
	Rebounds int
	// Rate is samples a second, discarded ones included.
	Rate float64
}

// judge counts the samples whose two engine readings agree. Every one of them
// above the capacity is a violation, and so is every one of the trainer above
// its ceiling and the floor in force when it was read.
func judge(raw []rawSample, lost int, d yardstick, limits ceilings) verdict {
	v := verdict{Lost: lost}
	broken := map[uint64]bool{}
	for _, r := range raw {
		if !r.agrees() {
			v.Discarded++
			continue
		}
		s := auditSample{At: r.From, Engine: max(0, r.Engine-d.EngineBaseline), Trainer: max(0, r.Trainer-d.TrainerBaseline)}
		v.Samples = append(v.Samples, s)
		v.MaxDevice = max(v.MaxDevice, s.total())
		if s.total() > d.Capacity {
			v.Violations = append(v.Violations, violation{At: s.At, What: "device", Got: s.total(), Limit: d.Capacity})
		}
		step, ok := limits.highest(r.From, r.To)
		if limit := size.Bytes(step.Bytes) + d.floorAt(r.To); ok && s.Trainer > limit {
			v.Violations = append(v.Violations, violation{At: s.At, What: "ceiling", Got: s.Trainer, Limit: limit, Epoch: step.Epoch})
			broken[step.Epoch] = true
		}
	}
	v.Rebounds = len(broken)
	if n := len(raw); n > 1 {
		v.Rate = float64(n-1) / raw[n-1].At.Sub(raw[0].At).Seconds()
	}
	return v
}

// heldMean is the mean of what the trainer held beyond the floor in force, over
// [from, to].
func (v verdict) heldMean(d yardstick, from, to time.Time) float64 {
	var sum float64
	n := 0
	for _, s := range v.Samples {
		if s.At.Before(from) || s.At.After(to) {
			continue
		}
		sum += float64(max(0, s.Trainer-d.floorAt(s.At)))
		n++
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}
