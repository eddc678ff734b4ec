package handover

import "time"

// State is a copy of all that the core knows, for /api/v1/state and metrics.
// Times are offsets from the sidecar's start.
type State struct {
	At       At             `json:"at_ns"`
	Session  uint32         `json:"session"`
	Epoch    Epoch          `json:"epoch"`
	Mode     Mode           `json:"mode"`
	Devices  []DeviceState  `json:"devices"`
	Engines  []EngineState  `json:"engines"`
	Trainers []TrainerState `json:"trainers"`
	Queue    []QueueState   `json:"queue"`
	Owed     []OwedState    `json:"owed"`
	// ExpectedHandover and HandoverTail are the learned mean time from decision to
	// confirmation, and the time that few exceed.
	ExpectedHandover time.Duration `json:"expected_handover_ns"`
	HandoverTail     time.Duration `json:"handover_tail_ns"`
	// TrainingShare is the mean share of the devices' time that training has had of late.
	TrainingShare float64 `json:"training_share_ratio"`
}

// DeviceState is one device's ledger: Capacity = Resident + KVCharged + Floor +
// TrainerCharged + Headroom + Free, where the charged terms are
// max(kv_bound, kv_held) and max(budget, held) with whatever is not confirmed
// yet counted in full. An engine that is down may add StartExtra.
type DeviceState struct {
	ID             DeviceID `json:"id"`
	Capacity       Bytes    `json:"capacity_bytes"`
	Headroom       Bytes    `json:"headroom_bytes"`
	Resident       Bytes    `json:"resident_bytes"`
	KVBound        Bytes    `json:"kv_bound_bytes"`
	KVHeld         Bytes    `json:"kv_held_bytes"`
	KVCharged      Bytes    `json:"kv_charged_bytes"`
	StartExtra     Bytes    `json:"start_extra_bytes"`
	Floor          Bytes    `json:"floor_bytes"`
	Budget         Bytes    `json:"budget_bytes"`
	Held           Bytes    `json:"held_bytes"`
	TrainerCharged Bytes    `json:"trainer_charged_bytes"`
	Free           Bytes    `json:"free_bytes"`
	// Over is the bytes by which what is promised exceeds the capacity now, a dead
	// engine's start included; WorstOver is the most so far without that. Breaches is
	// how often bytes were held above a limit (breach.go), WorstBreach by how many at
	// most.
	Over        Bytes  `json:"over_bytes"`
	WorstOver   Bytes  `json:"worst_over_bytes"`
	Breaches    uint64 `json:"breaches"`
	WorstBreach Bytes  `json:"worst_breach_bytes"`
	// Deferred is how often a shrink was put off, or only a part of it ordered, for
	// policy.shrink_limit.
	Deferred uint64 `json:"shrinks_deferred"`
}

// EngineState is one engine, bytes per device.
type EngineState struct {
	ID        EngineID `json:"id"`
	Fence     string   `json:"fence"`
	Resident  Bytes    `json:"resident_bytes"`
	Pool      Bytes    `json:"pool_bytes"`
	Bound     Bytes    `json:"kv_bound_bytes"`
	Confirmed Bytes    `json:"kv_bound_confirmed_bytes"`
	Held      Bytes    `json:"kv_held_bytes"`
	Needed    Bytes    `json:"kv_needed_bytes"`
	// Target is what the bound must cover, Lend what it keeps when memory is lent.
	Target Bytes `json:"target_bytes"`
	Lend   Bytes `json:"lend_bytes"`
	// Predicted is the expected need of live requests, Foreign the KV that none of
	// them explains, Short the demand that the forecast missed.
	Predicted Bytes `json:"predicted_bytes"`
	Foreign   Bytes `json:"foreign_bytes"`
	Short     Bytes `json:"short_bytes"`
	// AllocDelay is the engine's own delay from arrival to first block.
	AllocDelay time.Duration `json:"alloc_delay_ns"`
	BoundEpoch Epoch         `json:"bound_epoch"`
	// BoundFall is how long the slower of its bound's falls took that gave cached bytes
	// back, 0 before the first.
	BoundFall time.Duration `json:"bound_fall_ns"`
	Settled   bool          `json:"settled"`
	Fenced    bool          `json:"fenced"`
	Down      bool          `json:"down"`
	Live      int           `json:"live"`
	Reserve   ReserveState  `json:"reserve"`
	// Stages are its pipeline stages, where it has several: its bytes above are those of
	// the fullest. Tightest is the one where fewest tokens more fit, and decides how far
	// the bound can rise; Violation says what is predicted there, if anything is.
	Stages    []StageState `json:"stages,omitempty"`
	Tightest  *int         `json:"tightest_stage,omitempty"`
	Violation string       `json:"violation,omitempty"`
}

// TrainerState is one trainer.
type TrainerState struct {
	ID         TrainerID `json:"id"`
	Job        string    `json:"job"`
	Device     DeviceID  `json:"device"`
	Floor      Bytes     `json:"floor_bytes"`
	FloorKnown bool      `json:"floor_known"`
	Budget     Bytes     `json:"budget_bytes"`
	MayHold    Bytes     `json:"may_hold_bytes"`
	Held       Bytes     `json:"held_bytes"`
	Bytes      Bytes     `json:"bytes"`
	Epoch      Epoch     `json:"epoch"`
	Owed       bool      `json:"owed"`
	Acked      bool      `json:"acked"`
	Fenced     bool      `json:"fenced"`
	Gone       bool      `json:"gone"`
	// Why says why it has no budget, or less than its least; else it is empty.
	Why string `json:"why,omitempty"`
}

// QueueState is one held request; DueAt is when it is answered anyway.
type QueueState struct {
	ID      RequestID     `json:"id"`
	Engine  EngineID      `json:"engine"`
	Need    Bytes         `json:"need_bytes"`
	Arrived At            `json:"arrived_ns"`
	Slack   time.Duration `json:"slack_ns"`
	DueAt   At            `json:"due_ns"`
	// Stage is the pipeline stage that it waits for.
	Stage string `json:"stage,omitempty"`
}

// OwedState is one order that is not done.
type OwedState struct {
	Epoch   Epoch         `json:"epoch"`
	Trainer TrainerID     `json:"trainer"`
	Reason  string        `json:"reason"`
	Stage   string        `json:"stage,omitempty"`
	Shrink  bool          `json:"shrink"`
	From    Bytes         `json:"from_bytes"`
	To      Bytes         `json:"to_bytes"`
	Decided At            `json:"decided_ns"`
	Within  time.Duration `json:"within_ns"`
	Acked   bool          `json:"acked"`
}

// Snapshot copies the state; it shares nothing with the core.
func (h *Handover) Snapshot() State {
	s := State{
		At: h.now, Session: h.cfg.Session, Epoch: NewEpoch(h.cfg.Session, h.count), Mode: h.cfg.Mode,
		Devices: []DeviceState{}, Engines: []EngineState{}, Trainers: []TrainerState{}, Queue: []QueueState{}, Owed: []OwedState{},
		ExpectedHandover: h.tail.mean, HandoverTail: h.tail.high(), TrainingShare: h.share.until(h.now),
	}
	for _, d := range h.devices {
		s.Devices = append(s.Devices, d.state())
	}
	for _, e := range h.engines {
		es := e.state()
		es.Reserve = h.reserveState(e)
		e.showStages(&es)
		s.Engines = append(s.Engines, es)
	}
	for _, t := range h.trainers {
		ts := t.state()
		ts.Why = h.whyNothing(t)
		s.Trainers = append(s.Trainers, ts)
		if c := t.change; t.open && c != nil {
			s.Owed = append(s.Owed, OwedState{
				Epoch: t.epoch, Trainer: t.id, Reason: c.reason, Stage: c.stage.String(), Shrink: c.shrink, From: c.from, To: c.to,
				Decided: c.decided, Within: c.within, Acked: t.acked,
			})
		}
	}
	for _, r := range h.queue {
		s.Queue = append(s.Queue, QueueState{
			ID: r.id, Engine: r.engine.cfg.ID, Need: r.live.Held(), Arrived: r.arrived, Slack: r.slack, DueAt: r.dueAt,
			Stage: r.engine.tightestID().String(),
		})
	}
	return s
}

func (d *device) state() DeviceState {
	s := DeviceState{
		ID: d.cfg.ID, Capacity: d.capacity, Headroom: d.cfg.Headroom, Free: d.free(),
		Over: d.over, WorstOver: d.worst, Breaches: d.breaches, WorstBreach: d.worstBreach, Deferred: d.limit.deferred,
	}
	for _, e := range d.engines {
		s.Resident += e.resident
		s.KVBound += e.on(d, e.bound)
		s.KVHeld += e.on(d, e.held)
		s.KVCharged += e.on(d, e.kv())
	}
	s.StartExtra = d.startExtra()
	for _, t := range d.trainers {
		s.Budget += t.budget
		s.Held += t.held()
		s.Floor += t.floor
		s.TrainerCharged += t.charge() - t.floor
	}
	return s
}

func (e *engine) state() EngineState {
	return EngineState{
		ID: e.cfg.ID, Fence: e.cfg.Fence.String(), Resident: e.resident, Pool: e.cfg.Pool, Bound: e.bound,
		Confirmed: e.usable(), Held: e.held, Needed: e.needed, Target: e.target, Lend: e.lend,
		Predicted: e.pred.Need(), Foreign: e.foreign(), Short: e.short, BoundEpoch: e.epoch,
		Settled: e.settled, Fenced: e.fenced, Down: e.down, Live: len(e.requests), AllocDelay: e.delay.value(), BoundFall: e.falls,
	}
}

func (t *trainer) state() TrainerState {
	return TrainerState{
		ID: t.id, Job: t.job.name, Device: t.dev.cfg.ID, Floor: t.floor, FloorKnown: t.floorKnown,
		Budget: t.budget, MayHold: t.mayHold, Held: t.held(), Bytes: t.bytes, Epoch: t.epoch,
		Owed: t.open, Acked: t.acked, Fenced: t.fenced, Gone: t.gone,
	}
}
