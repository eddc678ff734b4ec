package handover

import (
	"math"
	"time"
)

// TrainingShare is the share of the device's time, 0 to 1, that training has from now
// on. Curves of speed are of jobs that have all of it.
type TrainingShare struct {
	At   At
	Duty float64
}

func (e TrainingShare) when() At { return e.At }

// shareMemory is the time constant of the mean share: memory moves over minutes, and
// between two bursts training has all of the time.
const shareMemory = time.Minute

// share is the mean share of the time that training has had of late. The zero value is
// all of it.
type share struct {
	lost float64 // 1 - mean, as of at
	at   At
	now  float64 // 1 - what it has now
}

// until is the mean at a moment.
func (s share) until(now At) float64 {
	return 1 - (s.lost + (1-math.Exp(-float64(now-s.at)/float64(shareMemory)))*(s.now-s.lost))
}

func (h *Handover) onTrainingShare(e TrainingShare) {
	h.share.lost, h.share.at = 1-h.share.until(h.now), h.now
	h.share.now = 0
	if e.Duty < 1 { // what is no share is all of it
		h.share.now = 1 - max(e.Duty, 0)
	}
}
