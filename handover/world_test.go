package handover

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"pgregory.net/rapid"

	"github.com/lull-project/lull/size"
)

// world is a random truth around the core: devices, engines that obey bounds,
// trainers that obey, lie, die and reconnect, and messages that come late, twice
// or never. Trainers that lie only fail to give back; when rebound is set they
// may also rise, when shaky is set devices may lose capacity, and when boastful
// is set liars claim to hold more than they do, and are charged it.
type world struct {
	t    *rapid.T
	cfg  Config
	h, g *Handover // g is driven with the same events, for determinism
	now  At
	// wakeAt is the driver's one timer, as the last Wake set it; 0 none.
	wakeAt At

	rebound, shaky, boastful bool
	priced                   bool // hellos bring prices and speeds

	engines  []*worldEngine
	trainers []*worldTrainer
	capacity map[DeviceID]Bytes
	// uninvited marks devices on which a trainer took its floor without asking,
	// which may exceed what is free.
	uninvited map[DeviceID]bool
	acks      []Acked            // in flight
	late      []Event            // bound answers and samples in flight, in any order
	orphans   map[TrainerID]bool // of an earlier session, without a hello in this one
	requests  []RequestID
	held      map[RequestID]At
	slack     map[RequestID]time.Duration
	ended     map[RequestID]string // Release, Reject or Finished while held
	arrived   int
	last      map[string]Epoch // of each party
	top       Epoch
}

type worldEngine struct {
	id     EngineID
	cfg    EngineConfig
	bound  Bytes
	epoch  Epoch
	held   Bytes
	alive  bool
	hangs  bool       // it does not answer, and holds what it has
	forgot bool       // it started again, and has not heard of a bound yet
	orders []SetBound // in flight, in order
}

type worldTrainer struct {
	id        TrainerID
	job       string
	dev       DeviceID
	floor     Bytes
	told      Bytes // by the last order
	known     bool
	ceiling   Bytes
	held      Bytes
	epoch     Epoch
	alive     bool
	connected bool
	liar      bool
	pinned    Bytes   // what it can never give back
	orders    []Order // in flight, in order
}

const worldResident = 100 * mib

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, capacity: map[DeviceID]Bytes{}, uninvited: map[DeviceID]bool{}, held: map[RequestID]At{}, slack: map[RequestID]time.Duration{},
		ended: map[RequestID]string{}, last: map[string]Epoch{},
		rebound: rapid.IntRange(0, 4).Draw(t, "rebound") == 0, shaky: rapid.IntRange(0, 4).Draw(t, "shaky") == 0,
		boastful: rapid.IntRange(0, 4).Draw(t, "boastful") == 0, priced: rapid.Bool().Draw(t, "priced"),
	}
	c := DefaultConfig()
	c.Session, c.Grace = 1, 100*ms
	c.Hold = rapid.SampledFrom([]HoldMode{HoldAuto, HoldAuto, HoldNever}).Draw(t, "hold")
	c.Owed = rapid.SampledFrom([]OwedMode{OwedFailOpen, OwedRefuse}).Draw(t, "owed")
	c.QueueLimit = rapid.IntRange(1, 4).Draw(t, "queue")
	c.Mode = rapid.SampledFrom([]Mode{ModeElastic, ModeElastic, ModeElastic, ModeStatic}).Draw(t, "mode")
	c.StaticKVFrac = 0.5
	c.Limit = rapid.SampledFrom([]Limit{c.Limit, c.Limit, {}, {PerSecond: 1}, {PerSecond: 2, BytesPerSecond: 64 * mib, Arrivals: true}}).Draw(t, "limit")
	devices := []DeviceID{"d0", "d1"}[:rapid.IntRange(1, 2).Draw(t, "devices")]
	n := rapid.IntRange(1, 2).Draw(t, "engines")
	for _, d := range devices {
		w.capacity[d] = Bytes(n)*(worldResident+400*mib) + 3*50*mib + 64*mib
		c.Devices = append(c.Devices, DeviceConfig{ID: d, Capacity: w.capacity[d], Headroom: 64 * mib})
	}
	warm := Bytes(rapid.IntRange(0, 2).Draw(t, "warm")) * 200 * mib // of the server
	for i := range n {
		e := EngineConfig{
			ID: EngineID(fmt.Sprintf("e%d", i)), Devices: devices, Pool: 400 * mib, Resident: worldResident,
			Fence:         rapid.SampledFrom([]Fence{FenceHard, FenceHard, FenceArena, FenceStatic}).Draw(t, "fence"),
			StartBytes:    Bytes(rapid.IntRange(0, 1).Draw(t, "start")) * 400 * mib,
			BytesPerToken: 64 * size.KiB, BlockTokens: 32, Preempts: rapid.Bool().Draw(t, "preempts"), AllocDelay: 2 * ms,
		}
		if e.Fence == FenceHard && rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
			e.Whole, e.Idle = true, 200*ms
			if rapid.Bool().Draw(t, "refuses") { // a model of a server
				e.Await, e.Server, e.Warm = 300*ms, "s", warm
			}
		}
		if len(devices) == 2 && rapid.Bool().Draw(t, "one device") {
			e.Devices = devices[i%2 : i%2+1]
		}
		if len(e.Devices) == 2 && rapid.Bool().Draw(t, "stages") {
			e.Stages = []Stage{{Devices: devices[:1], BytesPerToken: 64 * size.KiB}, {Devices: devices[1:], BytesPerToken: 64 * size.KiB}}
			less := Bytes(rapid.SampledFrom([]int{1, 7_001, 21_845, 48 * 1024, 65_535}).Draw(t, "bytes a token"))
			e.Stages[rapid.IntRange(0, 1).Draw(t, "which")].BytesPerToken = less
		}
		c.Engines = append(c.Engines, e)
		w.engines = append(w.engines, &worldEngine{id: e.ID, cfg: e, bound: e.Pool, alive: true})
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "trainers") {
		w.trainers = append(w.trainers, &worldTrainer{
			id: TrainerID(fmt.Sprintf("t%d", i)), job: fmt.Sprintf("job%d", rapid.IntRange(0, 1).Draw(t, "job")),
			dev: devices[i%len(devices)], floor: 50 * mib, pinned: Bytes(rapid.SampledFrom([]int{0, 0, 0, 16, 70}).Draw(t, "pinned")) * mib,
		})
	}
	w.cfg = c
	w.restart()
	return w
}

// restart is a new sidecar: a fresh core under the next session. What was held
// is answered by nobody; the proxy died with it.
func (w *world) restart() {
	var err error
	if w.h, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
	w.g, _ = New(w.cfg)
	for _, e := range w.engines {
		e.orders = nil
		for _, d := range e.cfg.Devices {
			w.uninvited[d] = w.uninvited[d] || e.forgot || !e.alive // beside trainers that the new session has yet to hear of
		}
	}
	for _, tr := range w.trainers {
		tr.orders, tr.connected = nil, false
	}
	w.acks, w.late, w.requests = nil, nil, nil
	w.orphans = map[TrainerID]bool{}
	for _, tr := range w.trainers {
		w.orphans[tr.id] = tr.alive
	}
	clear(w.held)
	w.wakeAt = 0
}

// step gives both cores the event, compares them and checks what comes out.
func (w *world) step(e Event) {
	w.t.Logf("%v %T%+v", w.now, e, e)
	acts := w.h.Step(e)
	w.t.Logf("  -> %v", acts)
	if twin := w.g.Step(e); !reflect.DeepEqual(acts, twin) {
		w.t.Fatalf("%T: the same events gave other actions\n%v\n%v", e, acts, twin)
	}
	if a, b := w.h.Snapshot(), w.g.Snapshot(); !reflect.DeepEqual(a, b) {
		w.t.Fatalf("%T: the same events gave another state\n%+v\n%+v", e, a, b)
	}
	w.checkOrder(acts)
	for _, a := range acts {
		w.take(a)
	}
	if w.h.wake > w.now && w.h.wake != w.wakeAt {
		w.t.Fatalf("after %T: the core counts on a Tick at %v, and the driver's timer is at %v", e, w.h.wake, w.wakeAt)
	}
	w.checkLedger()
	w.checkTruth(e)
}

func (w *world) checkOrder(acts []Action) {
	stage := 0
	for _, a := range acts {
		s := 2
		switch a.(type) {
		case Order:
			s = 0
		case SetBound:
			s = 1
		}
		if s < stage {
			w.t.Fatalf("%T after later kinds in %v", a, acts)
		}
		stage = s
	}
}

func (w *world) rises(party string, e Epoch) {
	if e <= w.last[party] {
		w.t.Fatalf("epoch %v for %s after %v", e, party, w.last[party])
	}
	w.last[party] = e
	w.top = max(w.top, e)
}

// take puts an action into the world.
func (w *world) take(a Action) {
	switch a := a.(type) {
	case Order:
		w.rises("trainer "+string(a.Trainer), a.Epoch)
		tr := w.trainer(a.Trainer)
		if !tr.connected {
			w.t.Fatalf("order to %s, which is not connected", a.Trainer)
		}
		tr.orders = append(tr.orders, a)
		if a.Bytes > tr.told && a.Reason != "fence" {
			w.checkGrowth(tr)
		}
		tr.told = a.Bytes
	case SetBound:
		w.rises("engine "+string(a.Engine), a.Epoch)
		e := w.engine(a.Engine)
		if e.cfg.Fence != FenceHard {
			w.t.Fatalf("SetBound to %s, whose fence is %v", a.Engine, e.cfg.Fence)
		}
		if e.cfg.Whole && a.Bytes != 0 && a.Bytes != e.cfg.Pool {
			w.t.Fatalf("SetBound to %v for %s, whose pool of %v moves whole", a.Bytes, a.Engine, e.cfg.Pool)
		}
		e.orders = append(e.orders, a)
	case Hold:
		if _, twice := w.held[a.ID]; twice || w.cfg.Hold == HoldNever && w.h.requests[a.ID].engine.cfg.Await == 0 {
			w.t.Fatalf("%s held (twice: %v, mode %s)", a.ID, twice, w.cfg.Hold)
		}
		w.held[a.ID] = w.now
	case Release:
		w.checkRelease(a)
		w.end(a.ID, "released")
	case Reject:
		if a.Outcome == OutcomeRejectedDeadline && w.cfg.Owed != OwedRefuse {
			w.t.Fatalf("%s rejected although owed is %s", a.ID, w.cfg.Owed)
		}
		if a.RetryAfter < time.Second {
			w.t.Fatalf("%s rejected without RetryAfter", a.ID)
		}
		w.end(a.ID, "rejected")
	case Wake:
		if a.At <= w.now {
			w.t.Fatalf("wake at %v, now %v", a.At, w.now)
		}
		w.wakeAt = a.At
	case HandoverDone:
		if a.Confirmed > 0 && a.Shrink {
			w.checkConfirmed(a)
		}
	}
}

// checkConfirmed: a shrink is confirmed by an ack and by a later look at the
// device that shows the bytes gone. Who said part may show as much as it is
// charged for.
func (w *world) checkConfirmed(a HandoverDone) {
	if a.Acked == 0 || a.Confirmed < a.Acked {
		w.t.Fatalf("shrink confirmed without an ack: %+v", a)
	}
	tr := w.h.trainer(a.Trainer)
	most := max(a.To, w.trainer(a.Trainer).pinned)
	if a.How == howPart {
		most = max(most, tr.mayHold)
	}
	if tr.bytes-tr.floor > most {
		w.t.Fatalf("shrink to %v confirmed while the device shows %v: %+v", a.To, tr.bytes-tr.floor, a)
	}
}

func (w *world) checkRelease(a Release) {
	_, held := w.held[a.ID]
	if r := w.h.requests[a.ID]; r != nil && a.Outcome != OutcomeForwardedUnconfirmed {
		if e := r.engine; e.cfg.Await > 0 && e.epoch > 0 && !e.down && !e.rests && e.usable() < e.cfg.Pool && e.canCome() && w.cfg.Mode != ModeStatic {
			w.t.Fatalf("%s is %s while the pool that it needs is not there", a.ID, a.Outcome)
		}
	}
	switch a.Outcome {
	case OutcomeForwarded:
		if held {
			w.t.Fatalf("%s was held and is forwarded as if it had not been", a.ID)
		}
	case OutcomeHeldForwarded:
		if !held {
			w.t.Fatalf("%s was not held and is %s", a.ID, a.Outcome)
		}
	case OutcomeForwardedUnconfirmed:
		if w.cfg.Owed != OwedFailOpen {
			w.t.Fatalf("%s is %s although owed is %s", a.ID, a.Outcome, w.cfg.Owed)
		}
		if r := w.h.requests[a.ID]; r != nil && w.h.hopeless(r.engine) {
			return // what it waits for does not come
		}
		if held && w.now < w.held[a.ID]+min(w.slack[a.ID], w.cfg.AckWithin) {
			w.t.Fatalf("%s is %s before it was due", a.ID, a.Outcome)
		}
	default:
		w.t.Fatalf("%s released with outcome %s", a.ID, a.Outcome)
	}
}

func (w *world) end(id RequestID, how string) {
	if was := w.ended[id]; was != "" {
		w.t.Fatalf("%s is %s after it was %s", id, how, was)
	}
	w.ended[id] = how
	delete(w.held, id)
}

func (w *world) checkGrowth(tr *worldTrainer) {
	for _, e := range w.h.engines {
		for _, d := range e.devices {
			if d.cfg.ID == tr.dev && (e.down || !e.fenced || !e.seen) {
				w.t.Fatalf("%s grows while %s is down or not fenced", tr.id, e.cfg.ID)
			}
		}
	}
	if d := w.h.device(tr.dev); d.over > 0 {
		w.t.Fatalf("%s grows while %s is overcommitted by %v", tr.id, tr.dev, d.over)
	}
}

// checkLedger recounts the ledger from the snapshot.
func (w *world) checkLedger() {
	for _, d := range w.h.Snapshot().Devices {
		sum := d.Resident + d.KVCharged + d.StartExtra + d.Floor + d.TrainerCharged + d.Headroom
		if sum+d.Free != d.Capacity {
			w.t.Fatalf("%s: terms sum to %v, free %v, capacity %v", d.ID, sum, d.Free, d.Capacity)
		}
		if d.KVCharged < max(d.KVBound, d.KVHeld) && len(w.engines) == 1 {
			w.t.Fatalf("%s: %v charged for a bound of %v and %v held", d.ID, d.KVCharged, d.KVBound, d.KVHeld)
		}
		if sum > d.Capacity && d.Over == 0 {
			w.t.Fatalf("%s: %v of %v promised, and nobody noticed", d.ID, sum, d.Capacity)
		}
		if d.Over == 0 && w.known(d.ID) {
			w.uninvited[d.ID] = false
		}
		if d.Over > 0 && !w.rebound && !w.shaky && !w.boastful && !w.uninvited[d.ID] && !w.worldBreach(d.ID) {
			w.t.Fatalf("%s: overcommitted by %v in a world that keeps its word\n%+v\n%s", d.ID, d.Over, d, w.truth())
		}
	}
}

// worldBreach says that the ledger may exceed capacity for a reason outside the
// core: an engine that needs its whole start, was not read yet, or asks nobody
// (an arena engine takes what a dead trainer left before the core knows).
func (w *world) worldBreach(id DeviceID) bool {
	for _, e := range w.h.engines {
		for _, d := range e.devices {
			if d.cfg.ID == id && (!e.seen || e.cfg.Fence == FenceArena || e.down || !e.fenced || w.cfg.Mode == ModeStatic && !d.split) {
				return true
			}
		}
	}
	return false
}

// checkTruth is the point of it all: whatever was lost, late or a lie, what
// everybody may really hold, messages in flight included, fits the device, or
// exceeds it by no more than the core has noticed.
func (w *world) checkTruth(e Event) {
	if w.rebound || w.shaky {
		return
	}
	for id, capacity := range w.capacity {
		if w.uninvited[id] && !w.known(id) {
			continue
		}
		sum := w.most(id)
		if over := w.h.device(id).over; sum > capacity+over {
			w.t.Fatalf("after %T %+v: %s may really be filled with %v of %v\nledger %+v\nengines %+v", e, e, id, sum, capacity, w.h.device(id).state(), w.truth())
		}
	}
}

// known says that the core has heard of every living trainer on the device.
func (w *world) known(id DeviceID) bool {
	for _, tr := range w.trainers {
		if tr.alive && tr.dev == id && w.h.trainer(tr.id) == nil {
			return false
		}
	}
	return true
}

// most is what everybody may hold on a device.
func (w *world) most(id DeviceID) Bytes {
	sum := Bytes(64 * mib)
	for _, e := range w.engines {
		for _, d := range e.cfg.Devices {
			if d == id {
				sum += worldResident + e.on(id, e.most())
			}
		}
	}
	for _, tr := range w.trainers {
		if tr.dev == id {
			sum += tr.most()
		}
	}
	return sum
}

// on is what so many bytes of the engine are on one of its devices, by its tokens.
func (e *worldEngine) on(id DeviceID, b Bytes) Bytes {
	for _, s := range e.cfg.Stages {
		if s.Devices[0] == id {
			return Bytes(math.Ceil(float64(b) / float64(e.cfg.BytesPerToken) * float64(s.BytesPerToken)))
		}
	}
	return b
}

// most is the KV that the engine may map, counting bounds in flight.
func (e *worldEngine) most() Bytes {
	if e.cfg.Fence == FenceStatic {
		return e.cfg.Pool
	}
	if !e.alive {
		return 0
	}
	if e.cfg.Fence == FenceArena {
		return e.held // it grows only into what is really free
	}
	most := max(e.bound, e.held)
	for _, o := range e.orders {
		most = max(most, o.Bytes)
	}
	return most
}

// most is what the trainer may hold, counting orders in flight.
func (tr *worldTrainer) most() Bytes {
	if !tr.alive {
		return 0
	}
	most := max(tr.ceiling, tr.held)
	for _, o := range tr.orders {
		most = max(most, o.Bytes)
	}
	return tr.floor + most
}

func (w *world) engine(id EngineID) *worldEngine {
	for _, e := range w.engines {
		if e.id == id {
			return e
		}
	}
	return nil
}

func (w *world) trainer(id TrainerID) *worldTrainer {
	for _, tr := range w.trainers {
		if tr.id == id {
			return tr
		}
	}
	return nil
}

// truth prints the world, for failures.
func (w *world) truth() string {
	s := ""
	for _, e := range w.engines {
		s += fmt.Sprintf("%+v; ", *e)
	}
	for _, tr := range w.trainers {
		s += fmt.Sprintf("%+v; ", *tr)
	}
	return s
}
