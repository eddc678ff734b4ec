package handover

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestRandomWorldsKeepEveryPromise drives the core through random worlds; the
// checks are in world_test.go. rapid prints the seed of a failure.
func TestRandomWorldsKeepEveryPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		if rapid.IntRange(0, 9).Draw(t, "cold") > 0 {
			w.warmUp()
		}
		for range rapid.IntRange(50, 400).Draw(t, "events") {
			w.pass(time.Duration(rapid.SampledFrom([]int{0, 0, 200, 1000, 3000, 40_000, 600_000}).Draw(t, "us")) * time.Microsecond)
			w.deliver()
			w.once()
		}
		w.drain()
	})
}

// warmUp lets everybody say hello and answer until memory is lent, which random
// events alone rarely reach.
func (w *world) warmUp() {
	for range 15 {
		for _, e := range w.engines {
			w.step(EngineSeen{At: w.now, Engine: e.id, Bound: e.bound, BoundEpoch: e.epoch, Resident: worldResident})
			for len(e.orders) > 0 {
				w.applyBound(e)
				w.step(BoundSet{At: w.now, Engine: e.id, Epoch: e.epoch, Bound: e.bound})
			}
		}
		for _, tr := range w.trainers {
			w.hello(tr)
			for len(tr.orders) > 0 {
				w.apply(tr, false)
				w.step(Acked{At: w.now, Trainer: tr.id, Epoch: tr.epoch, Held: tr.ceiling})
			}
			w.step(TrainerSeen{At: w.now, Trainer: tr.id, Bytes: tr.floor + tr.held})
		}
		w.now += 100 * ms
	}
}

// deliver brings about half of what is in flight to where it goes.
func (w *world) deliver() {
	for _, e := range w.engines {
		if len(e.orders) > 0 && rapid.Bool().Draw(w.t, "bound arrives") {
			w.answerBound(e)
		}
	}
	for _, tr := range w.trainers {
		if len(tr.orders) > 0 && rapid.Bool().Draw(w.t, "order arrives") {
			w.obey(tr)
		}
		if x := w.h.trainer(tr.id); x != nil && x.acked && x.open && rapid.Bool().Draw(w.t, "device is read") {
			w.seeTrainer(tr)
		}
	}
	if len(w.acks) > 0 && rapid.Bool().Draw(w.t, "ack arrives") {
		w.deliverAck()
	}
	if w.wakeAt > 0 && w.now >= w.wakeAt {
		w.wakeAt = 0
		w.step(Tick{At: w.now})
	}
}

// pass lets time pass; trainers of an earlier session say hello before the
// grace of a new one is over.
func (w *world) pass(d time.Duration) {
	if end := w.h.graceAt; w.h.started && w.now < end && w.now+d >= end {
		d -= end - time.Microsecond - w.now
		w.now = end - time.Microsecond
		for _, tr := range w.trainers {
			if tr.alive && w.orphans[tr.id] {
				w.hello(tr)
			}
		}
	}
	w.now += d
}

// once does one random thing.
func (w *world) once() {
	e := w.engines[rapid.IntRange(0, len(w.engines)-1).Draw(w.t, "engine")]
	tr := w.trainers[rapid.IntRange(0, len(w.trainers)-1).Draw(w.t, "trainer")]
	switch op := rapid.IntRange(0, 99).Draw(w.t, "op"); {
	case op < 14:
		w.arrive(e)
	case op < 24:
		w.finish()
	case op < 30 && len(w.requests) > 0:
		id := w.requests[rapid.IntRange(0, len(w.requests)-1).Draw(w.t, "which")]
		w.step(Progressed{At: w.now, Counts: []Progress{{ID: id, OutputTokens: rapid.IntRange(0, 600).Draw(w.t, "out")}}})
	case op < 42:
		w.seeEngine(e)
	case op < 54:
		w.answerBound(e)
	case op < 66:
		w.obey(tr)
	case op < 76:
		w.deliverAck()
	case op < 86:
		w.seeTrainer(tr)
	case op < 88:
		w.step(Tick{At: w.now})
	case op < 90:
		w.deliverLate()
	case op < 93:
		w.hello(tr)
	case op == 93:
		w.die(tr)
	case op == 94 && tr.connected:
		tr.connected = false
		tr.orders = nil
		w.step(TrainerGone{At: w.now, Trainer: tr.id})
	case op == 95 && tr.connected && tr.known:
		rise := Bytes(rapid.IntRange(0, 60).Draw(w.t, "rise")) * mib
		w.step(FloorAsked{At: w.now, Trainer: tr.id, Floor: tr.floor + rise})
	case op == 96:
		w.killEngine(e)
	case op == 97 && w.shaky:
		d := w.cfg.Devices[0]
		c := Bytes(rapid.IntRange(300, 1200).Draw(w.t, "capacity")) * mib
		w.step(CapacitySeen{At: w.now, Device: d.ID, Capacity: c})
	case op == 98 && w.rebound && tr.alive:
		tr.held += Bytes(rapid.IntRange(0, 100).Draw(w.t, "up")) * mib
	case op == 99:
		w.cfg.Session++
		w.restart()
	}
}

func (w *world) arrive(e *worldEngine) {
	w.arrived++
	id := RequestID(fmt.Sprintf("r%d", w.arrived))
	w.requests = append(w.requests, id)
	w.slack[id] = time.Duration(rapid.SampledFrom([]int{0, 5, 50, 500}).Draw(w.t, "slack")) * ms
	w.step(Arrived{
		At: w.now, ID: id, Engine: e.id, PromptBytes: rapid.IntRange(0, 8000).Draw(w.t, "prompt"), Slack: w.slack[id],
		Tier: rapid.SampledFrom([]string{"", "gold"}).Draw(w.t, "tier"), Promised: w.priced,
		NeedBytes: Bytes(rapid.SampledFrom([]int{0, 0, 20, 150}).Draw(w.t, "need")) * mib, MaxTokens: rapid.IntRange(0, 500).Draw(w.t, "max"),
	})
	if _, held := w.held[id]; !held && w.ended[id] == "" {
		w.t.Fatalf("%s arrived and was neither held nor answered", id)
	}
}

func (w *world) finish() {
	if len(w.requests) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.requests)-1).Draw(w.t, "which")
	id := w.requests[i]
	w.requests = append(w.requests[:i], w.requests[i+1:]...)
	if _, held := w.held[id]; held {
		w.end(id, "finished while held")
	}
	w.step(Finished{At: w.now, ID: id, PromptTokens: rapid.IntRange(0, 2000).Draw(w.t, "prompt"), OutputTokens: rapid.IntRange(0, 600).Draw(w.t, "out")})
}

func (w *world) seeEngine(e *worldEngine) {
	if !e.alive || e.hangs {
		return
	}
	top := e.bound
	if e.cfg.Fence == FenceArena {
		top = w.h.engine(e.id).bound
		for _, d := range e.cfg.Devices {
			top = min(top, e.held+max(0, w.capacity[d]-w.most(d))) // on the fullest stage, so too little elsewhere
		}
	}
	e.held = min(top, Bytes(rapid.IntRange(0, 400).Draw(w.t, "held"))*mib)
	if e.cfg.Fence == FenceStatic {
		e.held = e.cfg.Pool
	}
	sample := EngineSeen{
		At: w.now, Engine: e.id, Held: e.held, Bound: e.bound, BoundEpoch: e.epoch, Resident: worldResident,
		Waiting: rapid.IntRange(0, 1).Draw(w.t, "waiting"), Short: Bytes(rapid.SampledFrom([]int{0, 0, 0, 64}).Draw(w.t, "short")) * mib,
	}
	// Only a hard fence's samples carry the epoch by which an old one is known,
	// once it has one.
	if e.epoch > 0 && rapid.IntRange(0, 9).Draw(w.t, "late") == 0 {
		w.late = append(w.late, sample)
		return
	}
	w.step(sample)
}

// deliverLate brings an answer or a sample that was overtaken by others.
func (w *world) deliverLate() {
	if len(w.late) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.late)-1).Draw(w.t, "which")
	e := w.late[i]
	w.late = append(w.late[:i], w.late[i+1:]...)
	switch e := e.(type) {
	case BoundSet:
		e.At = w.now
		w.step(e)
	case EngineSeen:
		e.At = w.now
		w.step(e)
	}
}

// answerBound lets the oldest SetBound reach the engine; its answer may be lost
// or a failure.
func (w *world) answerBound(e *worldEngine) {
	if len(e.orders) == 0 {
		return
	}
	o := e.orders[0]
	e.orders = e.orders[1:]
	fate := rapid.IntRange(0, 9).Draw(w.t, "fate")
	if fate == 0 || !e.alive {
		w.step(BoundFailed{At: w.now, Engine: e.id, Epoch: o.Epoch})
		return
	}
	w.applyTo(e, o)
	if fate == 1 { // it obeys, and its answer is lost
		return
	}
	answer := BoundSet{At: w.now, Engine: e.id, Epoch: o.Epoch, Bound: e.bound, Held: e.held}
	if fate == 2 {
		w.late = append(w.late, answer)
		return
	}
	w.step(answer)
}

func (w *world) applyBound(e *worldEngine) {
	o := e.orders[0]
	e.orders = e.orders[1:]
	w.applyTo(e, o)
}

func (w *world) applyTo(e *worldEngine, o SetBound) {
	if o.Epoch > e.epoch {
		e.bound, e.epoch, e.forgot = o.Bytes, o.Epoch, false
		e.held = min(e.held, e.bound)
	}
}

// obey lets the oldest order reach the trainer. A liar acks and keeps what it
// holds; acks come late, in any order, twice or never.
func (w *world) obey(tr *worldTrainer) {
	if len(tr.orders) == 0 || !tr.alive {
		return
	}
	o, fresh := w.apply(tr, !tr.liar && rapid.IntRange(0, 5).Draw(w.t, "lie") == 0)
	if !fresh {
		return
	}
	ack := Acked{Trainer: tr.id, Epoch: o.Epoch, Held: o.Bytes, How: "drop"}
	if tr.ceiling > o.Bytes && !tr.liar {
		ack.Held, ack.How = tr.ceiling, howPart
	}
	if w.boastful && tr.liar && rapid.Bool().Draw(w.t, "says part") { // of any size
		ack.Held, ack.How = Bytes(rapid.SampledFrom([]int{0, 100, 1 << 20, math.MaxInt64 >> 20}).Draw(w.t, "part"))*mib, howPart
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 1, 1, 1, 2}).Draw(w.t, "copies") {
		w.acks = append(w.acks, ack)
	}
}

// apply puts the oldest order into force, or pretends to.
func (w *world) apply(tr *worldTrainer, lie bool) (o Order, fresh bool) {
	o = tr.orders[0]
	tr.orders = tr.orders[1:]
	if o.Epoch <= tr.epoch {
		return o, false
	}
	tr.epoch = o.Epoch
	if o.Reason == "floor" { // it takes its new floor under the order's ceiling
		tr.held = min(tr.held, o.Bytes)
		tr.floor = max(tr.floor, o.Floor)
		lie = false
	}
	if lie && o.Shrink {
		tr.held = tr.ceiling // and it stays there, whatever it says
		tr.liar = true
		return o, true
	}
	stays := min(tr.held, tr.pinned) // of what it holds
	tr.ceiling = max(o.Bytes, stays)
	tr.held = min(tr.held, tr.ceiling)
	if o.Reason == "grow" {
		tr.held = tr.ceiling
	}
	return o, true
}

func (w *world) deliverAck() {
	if len(w.acks) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.acks)-1).Draw(w.t, "ack")
	a := w.acks[i]
	w.acks = append(w.acks[:i], w.acks[i+1:]...)
	a.At = w.now
	w.step(a)
}

func (w *world) seeTrainer(tr *worldTrainer) {
	b := Bytes(0)
	if tr.alive {
		if tr.liar && rapid.IntRange(0, 3).Draw(w.t, "repents") == 0 {
			tr.liar = false
			tr.ceiling = min(tr.ceiling, tr.lastOrdered(w))
			tr.held = min(tr.held, tr.ceiling)
		}
		if !tr.liar && !w.rebound {
			tr.held = min(tr.ceiling, Bytes(rapid.IntRange(0, 1300).Draw(w.t, "held"))*mib)
		}
		b = tr.floor + tr.held
	}
	w.step(TrainerSeen{At: w.now, Trainer: tr.id, Bytes: b})
}

// lastOrdered is the budget that the core believes to be in force, by the last order or
// by one that this repeats.
func (tr *worldTrainer) lastOrdered(w *world) Bytes {
	if x := w.h.trainer(tr.id); x != nil && tr.epoch >= x.asOf && tr.epoch <= x.epoch {
		return x.budget
	}
	return tr.ceiling
}

func (w *world) hello(tr *worldTrainer) {
	if tr.connected {
		return
	}
	if !tr.alive {
		if w.h.trainer(tr.id) != nil {
			return // its old bytes are still counted; the device's word comes first
		}
		*tr = worldTrainer{id: tr.id, job: tr.job, dev: tr.dev, floor: 50 * mib, alive: true}
		w.uninvited[tr.dev] = true
	}
	tr.connected, w.orphans[tr.id] = true, false
	tr.known = tr.known || rapid.IntRange(0, 3).Draw(w.t, "floor known") > 0
	w.step(Hello{
		At: w.now, Trainer: tr.id, Job: tr.job, Device: tr.dev, Floor: tr.floor, FloorKnown: tr.known,
		Ceiling: tr.ceiling, Held: tr.held, LastEpoch: tr.epoch, MinBudget: 16 * mib,
	})
	if w.priced {
		w.price(tr)
	}
}

// price changes the prices and tells a trainer's speed.
func (w *world) price(tr *worldTrainer) {
	sample := rapid.SampledFrom([]float64{0, 1e-6, 1e-3, 1}).Draw(w.t, "sample")
	w.step(Priced{At: w.now, Sample: sample, Miss: 1, Tiers: map[string]float64{"gold": 10}})
	w.step(ReserveOff{At: w.now, Off: rapid.IntRange(0, 9).Draw(w.t, "off") == 0})
	w.step(TrainerRated{At: w.now, Trainer: tr.id, Curve: []Rate{
		{16 * mib, rapid.Float64Range(-1, 20).Draw(w.t, "slow")}, {200 * mib, rapid.Float64Range(-1, 40).Draw(w.t, "fast")},
	}, WorkLost: time.Duration(rapid.IntRange(0, 1000).Draw(w.t, "lost")) * ms})
}

func (w *world) die(tr *worldTrainer) {
	if !tr.alive {
		return
	}
	was := tr.connected
	tr.alive, tr.connected, tr.orders, tr.held, tr.ceiling = false, false, nil, 0, 0
	if was {
		w.step(TrainerGone{At: w.now, Trainer: tr.id})
	}
}

// killEngine kills an engine, or starts it again: it has forgotten its bound, and
// may map all that its start was promised. Or it hangs for a while.
func (w *world) killEngine(e *worldEngine) {
	switch {
	case e.hangs:
		e.hangs = false
		w.step(EngineUp{At: w.now, Engine: e.id})
		return
	case e.alive && rapid.IntRange(0, 2).Draw(w.t, "hangs") == 0:
		e.hangs = true
		w.step(EngineDown{At: w.now, Engine: e.id})
		return
	case e.alive:
		e.alive, e.held, e.orders = false, 0, nil
		w.step(EngineDown{At: w.now, Engine: e.id, Dead: true})
		return
	}
	e.alive = true
	if e.cfg.Fence == FenceHard {
		e.bound, e.epoch, e.forgot = e.cfg.Pool, 0, true
		if s := e.cfg.StartBytes; s > 0 {
			e.bound = max(0, min(s-worldResident, e.cfg.Pool))
		}
		for _, d := range e.cfg.Devices {
			// It starts beside a trainer that this session has not heard of, or before
			// training has made room.
			if !w.known(d) || w.h.device(d).over > 0 {
				w.uninvited[d] = true
			}
		}
	}
	w.step(EngineUp{At: w.now, Engine: e.id})
}

// drain lets time pass: in the end nothing is held, and every request that
// arrived in this session has had exactly one answer.
func (w *world) drain() {
	for range 20 {
		w.pass(time.Second)
		w.step(Tick{At: w.now})
	}
	if len(w.held) > 0 || len(w.h.queue) > 0 {
		w.t.Fatalf("still held after 20 s: %v", w.held)
	}
	for _, id := range w.requests {
		if w.ended[id] == "" {
			w.t.Fatalf("%s never had an answer", id)
		}
	}
}
