package sidecar

import (
	"time"

	"github.com/lull-project/lull/handover"
)

// pace is how often the loop looks at what moves by itself: often while requests
// run, rarely when idle, so that an idle sidecar costs nothing worth naming.
type pace struct {
	// progress is the interval of token counts; trainers that of device readings
	// while busy; idle that of either without requests.
	progress, trainers, idle time.Duration

	lastProgress, lastTrainers handover.At
}

func defaultPace() pace {
	return pace{progress: 50 * time.Millisecond, trainers: 25 * time.Millisecond, idle: 500 * time.Millisecond}
}

func (p *pace) progressDue(at handover.At, live int) bool {
	if live == 0 || at-p.lastProgress < p.progress {
		return false
	}
	p.lastProgress = at
	return true
}

func (p *pace) trainersDue(at handover.At, busy bool) bool {
	if at-p.lastTrainers < p.trainersEvery(busy) {
		return false
	}
	p.lastTrainers = at
	return true
}

func (p *pace) trainersEvery(busy bool) time.Duration {
	if busy {
		return p.trainers
	}
	return p.idle
}

// next is how long the loop may sleep.
func (p *pace) next(at handover.At, live int, busy bool) time.Duration {
	next := p.lastTrainers + p.trainersEvery(busy) - at
	if live > 0 {
		next = min(next, p.lastProgress+p.progress-at)
	}
	return next
}
