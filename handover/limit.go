package handover

import "time"

// Limit bounds the shrinks of each device. What live requests need now is taken all
// the same unless Arrivals says otherwise, and so is what the world took above the
// capacity: only what is taken ahead of need waits.
type Limit struct {
	// PerSecond is how many shrinks a second may be ordered on the mean, with a burst
	// of one second's; 0 is any number. Default 20: more, and training spends its time
	// on giving memory back; fewer, and the forecast's insurance comes late.
	PerSecond float64
	// BytesPerSecond is how much a second may be taken, with a burst of one second's;
	// 0, the default, is any amount.
	BytesPerSecond Bytes
	// Arrivals limits what live requests wait for too: they may then miss their
	// objectives so that training is left alone.
	Arrivals bool
}

// limiter is a device's two token buckets (full at first, one second deep, a shrink's
// worth at least).
type limiter struct {
	at       At
	started  bool
	shrinks  float64
	bytes    Bytes
	waits    bool // something was put off in the last Step
	empty    bool // and of what might be taken then, nobody had anything to give
	deferred uint64
}

// depth is what the buckets hold.
func (c Limit) depth() (shrinks float64, b Bytes) { return max(c.PerSecond, 1), c.BytesPerSecond }

func (l *limiter) refill(c Limit, now At) {
	shrinks, b := c.depth()
	if !l.started {
		l.started, l.at, l.shrinks, l.bytes = true, now, shrinks, b
	}
	took := (now - l.at).Seconds()
	l.at = now
	l.shrinks = min(l.shrinks+took*c.PerSecond, shrinks)
	if took >= 1 {
		l.bytes = b
	} else {
		l.bytes = min(l.bytes+Bytes(took*float64(c.BytesPerSecond)), b)
	}
}

// allow is what of short bytes may be taken now, at least must, in whole quanta
// beyond it.
func (h *Handover) allow(d *device, short, must Bytes) Bytes {
	c, l := h.cfg.Limit, &d.limit
	l.refill(c, h.now)
	if c.Arrivals {
		must = min(must, max(0, -d.free()-d.coming()))
	}
	most := short
	if c.PerSecond > 0 && l.shrinks < 1 {
		most = must
	}
	if c.BytesPerSecond > 0 {
		most = min(most, max(must, l.bytes.FloorTo(h.cfg.Quantum)))
	}
	most = max(most, must)
	waits := most < short
	if waits && !l.waits {
		l.deferred++
	}
	l.waits = waits
	return most
}

// spend counts a shrink of so many bytes. One that nobody may put off is counted
// too, down to nothing left.
func (l *limiter) spend(b Bytes) {
	if b > 0 {
		l.shrinks, l.bytes = max(0, l.shrinks-1), max(0, l.bytes-b)
	}
}

// nextAt is when what was put off may be taken, 0 where nothing was.
func (l *limiter) nextAt(c Limit, quantum Bytes) At {
	if !l.waits || l.empty {
		return 0
	}
	wait := time.Duration(0)
	if c.PerSecond > 0 && l.shrinks < 1 {
		wait = time.Duration((1 - l.shrinks) / c.PerSecond * float64(time.Second))
	}
	if lack := quantum - l.bytes; c.BytesPerSecond > 0 && lack > 0 {
		wait = max(wait, time.Duration(float64(lack)/float64(c.BytesPerSecond)*float64(time.Second)))
	}
	return l.at + wait + time.Millisecond
}
