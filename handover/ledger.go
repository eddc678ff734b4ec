package handover

import "fmt"

// device is one column of the ledger; its terms are sums over its engines and
// trainers.
type device struct {
	cfg      DeviceConfig
	capacity Bytes
	engines  []*engine
	trainers []*trainer // by ID
	over     Bytes      // above capacity before this Step decided: the world's doing
	worst    Bytes      // most of over since the start, without a dead engine's demand
	breached bool       // bytes are held above a limit
	breaches uint64     // times that this began
	// worstBreach is the most of those bytes since the start.
	worstBreach Bytes
	granted     []grant // recent grants beside an arena engine
	limit       limiter
	split       bool // ModeStatic: the bounds were set

	calm      bool // bytes that could be lent are free; they are lent at calmUntil
	calmUntil At
}

// grant is bytes given to training at a time.
type grant struct {
	at    At
	bytes Bytes
}

// charged is everything that may be on the device: the left side of the
// invariant
//
//	resident + max(kv_bound, kv_held) + floor + max(budget, held) + headroom <= capacity
//
// where kv_bound is the largest bound that the engine may still obey, and
// budget the largest that the trainer may still use: neither falls before the
// other side has confirmed it.
func (d *device) charged() Bytes {
	sum := d.cfg.Headroom
	for _, e := range d.engines {
		sum += e.charge(d)
	}
	for _, t := range d.trainers {
		sum += t.charge()
	}
	return sum
}

// free is what nobody may use; negative when the device is overcommitted.
func (d *device) free() Bytes { return d.capacity - d.charged() }

// coming is what owed shrinks will bring.
func (d *device) coming() Bytes {
	var sum Bytes
	for _, t := range d.trainers {
		if t.open && t.proof == proofFallen && !t.gone {
			sum += t.charge() - t.floor - t.budget
		}
	}
	return sum
}

// noteOver runs after an event's facts are in the ledger and before anything is
// decided: what exceeds the capacity here, the world did.
func (h *Handover) noteOver() {
	for _, d := range h.devices {
		d.over = max(0, -d.free())
		if d.read() {
			d.worst = max(d.worst, d.over-d.startExtra())
			h.noteBreach(d)
		}
	}
}

// startExtra is what engines that are down will take beyond what they are charged
// alive: training makes room for it, and until then nobody holds it.
func (d *device) startExtra() Bytes {
	var sum Bytes
	for _, e := range d.engines {
		sum += e.charge(d) - e.resident - e.on(d, e.kv())
	}
	return sum
}

// read says that every engine of the device was seen or is known to be down;
// before that its whole pool is charged, which is caution and not a fact.
func (d *device) read() bool {
	for _, e := range d.engines {
		if !e.seen && !e.down {
			return false
		}
	}
	return true
}

// checkLedger panics when deciding made the ledger worse than the world did.
func (h *Handover) checkLedger() {
	for _, d := range h.devices {
		if over := -d.free(); over > d.over {
			panic(fmt.Sprintf("handover: ledger exceeds capacity by %v after epoch=%v", over, NewEpoch(h.cfg.Session, h.count)))
		}
	}
}
