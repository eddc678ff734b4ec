package reserve

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

const (
	engineID  = handover.EngineID("llm")
	deviceID  = handover.DeviceID("d0")
	trainerID = handover.TrainerID("t0")
	floor     = size.GiB
	headroom  = 256 * size.MiB
	start     = 5 * time.Second // of the trace, when memory is lent
)

// world is the core with an engine, a trainer and a trace around it.
type world struct {
	cfg    Config
	core   *handover.Handover
	rng    *rand.Rand
	now    time.Duration
	todo   schedule
	seq    int
	wakeAt time.Duration
	pool   size.Bytes

	engine server
	epoch  handover.Epoch // of the trainer's last order
	budget size.Bytes     // what training really has
	since  time.Duration
	busy   time.Duration // until when the trainer is at a shrink, whatever is ordered meanwhile

	samples float64 // made since the first request
	shrinks int     // since the first request
	paused  int     // shrinks since the start
	misses  int
	waits   int
	arrived int
}

// timed is something to do at a time; of several at once the first planned is
// first.
type timed struct {
	at  time.Duration
	seq int
	do  func()
}

type schedule []timed

func (s schedule) Len() int { return len(s) }
func (s schedule) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].seq < s[j].seq
}
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)   { *s = append(*s, x.(timed)) }
func (s *schedule) Pop() any {
	old := *s
	x := old[len(old)-1]
	*s = old[:len(old)-1]
	return x
}

func newWorld(cfg Config, pool size.Bytes, change func(*handover.Config)) (*world, error) {
	c := handover.DefaultConfig()
	c.Session, c.Grace, c.Quantum = 1, 0, quantum
	c.Limit = handover.Limit{} // each policy as often as it likes: it pays for it
	c.Devices = []handover.DeviceConfig{{ID: deviceID, Capacity: pool + floor + headroom, Headroom: headroom}}
	c.Engines = []handover.EngineConfig{{
		ID: engineID, Devices: []handover.DeviceID{deviceID}, Pool: pool, BytesPerToken: cfg.PerToken, BlockTokens: cfg.BlockTokens,
	}}
	change(&c)
	core, err := handover.New(c)
	if err != nil {
		return nil, err
	}
	w := &world{cfg: cfg, core: core, rng: rand.New(rand.NewPCG(cfg.Part.Seed, 7)), pool: pool}
	w.engine = server{w: w, bound: pool}
	return w, nil
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.todo, timed{w.now + d, w.seq, do})
}

// replay runs the trace to its end. prices, when its samples cost something, are
// told before the first request.
func (w *world) replay(ctx context.Context, rows []traces.Row, prices handover.Priced) error {
	w.step(handover.EngineSeen{Engine: engineID, Bound: w.pool})
	w.step(handover.Hello{Trainer: trainerID, Job: "job", Device: deviceID, Floor: floor, FloorKnown: true})
	if prices.Sample > 0 {
		w.step(prices)
	}
	w.after(0, w.engine.turn)
	w.after(time.Second, w.report)
	for i, r := range rows {
		w.after(start+r.At, func() { w.arrive(i, r) })
	}
	end := start + rows[len(rows)-1].At
	for n := 0; len(w.todo) > 0 && w.todo[0].at <= end; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		x := heap.Pop(&w.todo).(timed)
		w.now = x.at
		x.do()
	}
	w.now = end
	w.account()
	return nil
}

func (w *world) arrive(i int, r traces.Row) {
	if w.arrived++; w.arrived == 1 { // what came before was the start
		w.account()
		w.samples, w.shrinks = 0, 0
	}
	q := &request{id: handover.RequestID(strconv.Itoa(i)), prompt: max(r.PromptTokens, 1), answer: max(r.OutputTokens, 1), arrived: w.now}
	w.engine.waiting = append(w.engine.waiting, q)
	w.step(handover.Arrived{At: w.now, ID: q.id, Engine: engineID, PromptTokens: q.prompt, Slack: w.cfg.Slack, Promised: true})
	w.engine.admit()
}

// step asks the core and does what it says. The engine has no use for holds: it
// queues by itself.
func (w *world) step(e handover.Event) {
	for _, a := range w.core.Step(e) {
		switch a := a.(type) {
		case handover.Order:
			w.obey(a)
		case handover.ReadTrainer:
			w.after(200*time.Microsecond, func() {
				w.step(handover.TrainerSeen{At: w.now, Trainer: trainerID, Bytes: floor + w.budget})
			})
		case handover.SetBound:
			w.after(time.Millisecond, func() { w.engine.setBound(a) })
		case handover.Wake:
			w.wakeAt = a.At
			w.after(a.At-w.now, func() {
				if w.wakeAt == a.At { // else a later Wake has taken its place
					w.step(handover.Tick{At: w.now})
				}
			})
		}
	}
}

// obey is the trainer: grants hold at once, shrinks when they are done.
func (w *world) obey(o handover.Order) {
	w.epoch = o.Epoch
	if o.Bytes > w.budget {
		w.setBudget(o.Bytes)
	}
	took := time.Millisecond
	if o.Shrink {
		w.shrinks++
		w.paused++
		if took = w.shrink(); took < 0 {
			return
		}
	}
	w.after(took, func() {
		if w.epoch != o.Epoch {
			return
		}
		w.setBudget(o.Bytes)
		w.step(handover.Acked{At: w.now, Trainer: trainerID, Epoch: o.Epoch, Held: o.Bytes, How: "drop"})
	})
}

// shrink is how long the trainer takes for a shrink that is ordered now, below 0
// where its answer is lost. One that it is at already is done no sooner for being
// ordered again, and what is ordered meanwhile is done with it.
func (w *world) shrink() time.Duration {
	took := w.draw()
	if took < 0 {
		return took
	}
	if w.busy > w.now {
		return max(w.cfg.Handovers.FastFrom, w.busy-w.now)
	}
	w.busy = w.now + took
	return took
}

// draw is how long a shrink takes, below 0 for ever.
func (w *world) draw() time.Duration {
	l, u := w.cfg.Handovers, w.rng.Float64()
	between := func(from, to time.Duration) time.Duration {
		return from + time.Duration(w.rng.Float64()*float64(to-from))
	}
	switch {
	case u < l.Lost:
		return -1
	case u < l.Lost+l.Slow:
		return between(l.SlowFrom, l.SlowTo)
	}
	return between(l.FastFrom, l.FastTo)
}

// speed is the trainer's samples a second: each further byte brings less.
func (w *world) speed(b size.Bytes) float64 {
	x := float64(b) / float64(w.pool)
	return topSpeed * 1.25 * x / (x + 0.25)
}

// curve is what the trainer reports of it.
func (w *world) curve() []handover.Rate {
	var out []handover.Rate
	for i := size.Bytes(1); i <= 16; i++ {
		out = append(out, handover.Rate{Bytes: w.pool * i / 16, SamplesPerSecond: w.speed(w.pool * i / 16)})
	}
	return out
}

// report is what the trainer says every second.
func (w *world) report() {
	w.step(handover.TrainerRated{At: w.now, Trainer: trainerID, Curve: w.curve(), WorkLost: time.Duration(w.paused) * pause})
	w.after(time.Second, w.report)
}

func (w *world) setBudget(b size.Bytes) {
	w.account()
	w.budget = b
}

// account adds the time since the last change.
func (w *world) account() {
	took := (w.now - w.since).Seconds()
	w.since = w.now
	w.samples += w.speed(w.budget) * took
}
