package sidecar

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

// What a reading of a GPU means for the loop. All of it runs on the loop's goroutine.

// key is what the GPU's problems are about.
func (d *gpuDriver) key() string { return "device " + string(d.id) }

// missed leaves the ledger as it was: nothing that training gives back on the GPU is
// used until it can be read again, and requests pass.
func (d *gpuDriver) missed(l *loop, err error) {
	text := err.Error() + "; nothing that training gives back there is used until it answers"
	if d.trouble == "" {
		d.log.Warn("the GPU cannot be read; nothing that training gives back there is used until it answers", "device", d.id, "err", err)
	}
	d.trouble = text
	l.view.problem(d.key(), text)
	for _, term := range driverTerms {
		l.metrics.ForgetMemory(string(d.id), "all", term)
	}
	for _, t := range l.trainers {
		if t.gpu == d {
			t.trouble = text
		}
	}
}

// driverTerms are the terms of memory that only a GPU's driver knows.
var driverTerms = []string{"total", "used", "others", "lost"}

// take tells the core what a reading means: first what others have taken, then what
// each trainer has.
func (d *gpuDriver) take(l *loop, seen *gpuSeen) {
	if d.trouble != "" {
		d.log.Info("the GPU is read again", "device", d.id)
		d.trouble = ""
	}
	var snap handover.State
	if l.core != nil {
		snap = l.core.Snapshot()
	}
	claims, peers, blind := d.claims(l, snap, seen)
	result := d.share.settle(tally{used: seen.reading.Used, engines: d.engines(l, snap, seen), claims: claims})
	capacity := d.fit(seen.reading.Total, result.others, blind)
	d.publish(l, seen, result, capacity, blind)
	if l.core == nil {
		return
	}
	if capacity != d.capacity {
		d.capacity = capacity
		l.pending = append(l.pending, handover.CapacitySeen{At: l.now(), Device: d.id, Capacity: capacity})
	}
	l.pending = append(l.pending, d.judge(l, claims, peers, result)...)
	l.drain()
}

// judge is what the reading says of each trainer. It says nothing of one whose word
// is newer than itself, and where bytes cannot be told apart of none while one's is:
// a reading that was under way at the ack would confirm it by what was there before.
// Another one has been asked for.
func (d *gpuDriver) judge(l *loop, claims []claim, peers []*trainerPeer, result settled) (events []handover.Event) {
	blindLate := slices.ContainsFunc(claims, func(c claim) bool { return !c.read && c.late })
	for i, t := range peers {
		c, b := claims[i], result.trainers[t.id]
		if c.late || !c.read && blindLate {
			continue
		}
		t.trouble = ""
		if c.read && c.shown == 0 && c.said > 0 {
			t.trouble = "NVML does not list its process on this GPU: it may be on another (LULL_DEVICE names one of lull.yaml)"
		}
		t.ended = c.said == 0 && b == 0 && d.over(t)
		events = append(events, handover.TrainerSeen{At: l.now(), Trainer: t.id, Bytes: b})
	}
	return events
}

// fit is the capacity beside what others hold. Where no process's bytes can be told
// the headroom counts twice: a word and a reading of the whole are never of one time.
func (d *gpuDriver) fit(total, others size.Bytes, blind bool) size.Bytes {
	capacity := min(d.cfg.Capacity, total-others)
	if blind {
		capacity -= d.cfg.Headroom
	}
	return max(0, capacity)
}

// over says that the trainer's process has ended, with all its threads.
func (d *gpuDriver) over(t *trainerPeer) bool {
	_, err := t.process.Read()
	return errors.Is(err, device.ErrGone)
}

// word takes an ack. One order has one answer: a trainer that repeats itself must
// not make every reading too old.
func (t *trainerPeer) word(a trainer.Ack, now time.Time) {
	t.claimed, t.acks = a.Held, t.acks+1
	if e := handover.Epoch(a.Epoch); e == t.sent && e != t.answered {
		t.answered, t.wordAt = e, now
	}
}

// claims are the trainers here; blind says that one of them is without a figure.
func (d *gpuDriver) claims(l *loop, snap handover.State, seen *gpuSeen) (out []claim, peers []*trainerPeer, blind bool) {
	for id, t := range l.trainers {
		if t.gpu != d || t.ended {
			continue
		}
		c := claim{id: id, acks: t.acks, late: seen.began.Before(t.wordAt)}
		if !d.over(t) {
			c.said = t.hello.Floor + t.claimed
			for _, known := range snap.Trainers {
				if known.ID == id && known.FloorKnown {
					c.said = known.Floor + t.claimed
				}
			}
		}
		b, err := seen.reading.Process(int(t.pid()))
		c.shown, c.read = b, err == nil
		blind = blind || !c.read
		out, peers = append(out, c), append(peers, t)
	}
	return out, peers, blind
}

// engines is what the engines here hold, as far as the core counts it as theirs: all
// that their processes have up to their bound, which is theirs before they say that
// they have mapped it. Where a process cannot be read its word counts. What is above
// either is others' for the moment. A server's models are in its process.
func (d *gpuDriver) engines(l *loop, snap handover.State, seen *gpuSeen) size.Bytes {
	var sum size.Bytes
	held, most := map[handover.EngineID]size.Bytes{}, map[handover.EngineID]size.Bytes{}
	for _, known := range snap.Engines {
		if e := l.engines[known.ID]; e != nil {
			of := cmp.Or(e.server, known.ID)
			held[of] += known.On(d.id, known.Held)
			most[of] += max(known.On(d.id, known.Bound), known.On(d.id, known.Held))
		}
	}
	for _, known := range snap.Engines {
		e := l.engines[known.ID]
		if e == nil || e.server != "" || !slices.Contains(e.devices, d.id) {
			continue
		}
		counted := known.Resident + held[known.ID]
		if pid := e.truth.known(); pid != 0 {
			if b, err := seen.tree(pid); err == nil {
				counted = min(known.Resident+most[known.ID], b)
			}
		}
		sum += counted
	}
	return sum
}

// DeviceState is one device as it shows itself. Bytes are plain numbers.
type DeviceState struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// Truth is processes where each process's bytes are read, device where only those
	// of the whole device can be; Why says why.
	Truth string `json:"truth"`
	// LeftOut says that the device of lull.yaml is not there: Why says why, and nothing
	// is lent on it.
	LeftOut bool   `json:"left_out,omitempty"`
	Why     string `json:"why,omitempty"`
	// Name, UUID and Driver are a GPU's.
	Name   string `json:"name,omitempty"`
	UUID   string `json:"uuid,omitempty"`
	Driver string `json:"driver,omitempty"`
	// Total and Used are the device's own figures, Others what neither engines nor
	// trainers account for, Capacity what is left to share beside it.
	Total    int64 `json:"total_bytes,omitempty"`
	Used     int64 `json:"used_bytes,omitempty"`
	Others   int64 `json:"others_bytes,omitempty"`
	Capacity int64 `json:"capacity_bytes"`
	// Processes are the bytes of each process by its pid.
	Processes map[string]int64 `json:"processes,omitempty"`
	MPS       bool             `json:"mps,omitempty"`
	// Faults are counts since the start, by kind.
	Faults map[string]int `json:"faults,omitempty"`
	Notes  []string       `json:"notes,omitempty"`
}

// The words of DeviceState.Truth.
const (
	truthProcesses = "processes"
	truthDevice    = "device"
)

// publish says in the state, the problems and the metrics what was seen.
func (d *gpuDriver) publish(l *loop, seen *gpuSeen, s settled, capacity size.Bytes, blind bool) {
	r := seen.reading
	out := DeviceState{
		ID: string(d.id), Kind: d.cfg.Kind, Truth: truthProcesses, Name: d.facts.Name, UUID: d.facts.UUID, Driver: d.facts.Driver,
		Total: int64(r.Total), Used: int64(r.Used), Others: int64(s.others), Capacity: int64(capacity), MPS: r.MPS,
		Processes: map[string]int64{}, Faults: map[string]int{}, Notes: slices.Clone(d.facts.Notes),
	}
	for pid, b := range r.Processes {
		out.Processes[strconv.Itoa(pid)] = int64(b)
	}
	for kind, n := range d.faults {
		out.Faults[kind] = n
	}
	if d.unwatch != "" {
		out.Notes = append(out.Notes, d.unwatch)
	}
	l.view.clearProblem(d.key())
	if blind || r.Why != "" {
		out.Truth, out.Why = truthDevice, r.Why
		if out.Why == "" {
			out.Why = "NVML lists a trainer's process without its bytes"
		}
		l.view.problem(d.key(), out.Why+"; training there is judged by what the whole device shows, with twice the headroom")
	}
	lost := d.facts.Total - r.Total
	if lost > 0 {
		l.view.problem(d.key()+" memory", fmt.Sprintf("%v less than at the start, which is lent no more", lost))
	}
	l.view.device(out)
	for term, b := range map[string]size.Bytes{"total": r.Total, "used": r.Used, "others": s.others, "lost": max(0, lost)} {
		l.metrics.Memory(string(d.id), "all", term, int64(b))
	}
}

// fault counts one and says it. What a process caused by itself and what the memory
// corrected is no problem of the device's.
func (d *gpuDriver) fault(l *loop, f device.Fault) {
	d.faults[f.Kind]++
	l.metrics.DeviceFault(string(d.id), f.Kind, strconv.FormatUint(f.Code, 10))
	level := slog.LevelError
	switch {
	case f.Kind == device.FaultCorrected:
		level = slog.LevelInfo
	case f.Job:
		level = slog.LevelWarn
	default:
		l.view.problem(d.key()+" fault", fmt.Sprintf("%s at %s, %d of this kind since the start; nvidia-smi -q says more", f.Text, l.clock().Format("15:04:05"), d.faults[f.Kind]))
	}
	if dropped, ok := d.flood.allow(); ok {
		l.log.Log(l.ctx, level, "the GPU reports a fault", "device", d.id, "fault", f.Text, "kind", f.Kind, "by_a_process", f.Job, "dropped_before", dropped)
	}
}
