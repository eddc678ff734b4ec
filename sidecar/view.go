package sidecar

import (
	"sort"
	"sync"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

// State is /api/v1/state. Bytes are plain numbers.
type State struct {
	// Session counts this sidecar's starts on its devices.
	Session uint32 `json:"session"`
	// Deciding says that there is a core to ask: false until every engine has said
	// what it is, and after the core failed. Lending says that there is something to
	// lend as well: an engine whose memory moves, on a device.
	Deciding bool `json:"deciding"`
	Lending  bool `json:"lending"`
	// Requests are those that have not ended.
	Requests int             `json:"requests_live"`
	Ledger   *handover.State `json:"ledger,omitempty"`
	Devices  []DeviceState   `json:"devices"`
	Engines  []EngineState   `json:"engines"`
	Trainers []TrainerState  `json:"trainers"`
	Memory   []OwnerMemory   `json:"memory"`
	SLO      []SLOState      `json:"slo"`
	Served   ServedState     `json:"served"`
	// Duty is training's share of the device's time, where interference is on.
	Duty     *DutyState `json:"duty,omitempty"`
	Problems []string   `json:"problems"`
}

// EngineState is an engine's own last word.
type EngineState struct {
	Name    string         `json:"name"`
	Kind    string         `json:"kind"`
	Static  bool           `json:"static"`
	Note    string         `json:"note,omitempty"`
	PID     int            `json:"pid,omitempty"`
	Sample  *engine.Sample `json:"sample,omitempty"`
	Problem string         `json:"problem,omitempty"`
}

// TrainerState is a trainer's own last word.
type TrainerState struct {
	ID        string `json:"id"`
	Connected bool   `json:"connected"`
	// PID is the kernel's word, not the trainer's.
	PID      int64 `json:"pid"`
	Baseline int64 `json:"baseline_bytes"`
	Floor    int64 `json:"floor_bytes"`
	// Problem says why its bytes cannot be read, or which order it does not meet;
	// requests do not suffer from it.
	Problem   string          `json:"problem,omitempty"`
	MinBudget int64           `json:"min_budget_bytes"`
	Report    *trainer.Report `json:"report,omitempty"`
}

// staticNote is what an operator must read before waiting for a handover.
const staticNote = "static pool: this server allocated its KV cache at start and gives nothing back; Lull measures and relays it and has nothing to lend from it"

// modelsNote is for a server whose models move.
const modelsNote = "its models are engines of their own, by its name and theirs: they are unloaded in lulls; what is the server's own stays"

// publishEvery bounds how often the state is laid out for readers: it costs more
// than a step.
const publishEvery = 50 * time.Millisecond

// view is what the admin API reads; the loop writes it.
type view struct {
	score *score

	mu       sync.Mutex
	state    State
	samples  map[handover.EngineID]engine.Sample
	trouble  map[handover.EngineID]string
	problems map[string]string
	passed   map[string]EngineState // servers on no device
	devices  map[string]DeviceState
	epoch    handover.Epoch
	laidOut  handover.At
	// started is the session at start, from which it is judged how far above another
	// writer's may be.
	started uint32
	// outranked, when set, is told of a session that the core took above another
	// writer's; it must not block.
	outranked func(session uint32)
}

func newView(s *score, session uint32) *view {
	return &view{
		score: s, started: session, state: State{Session: session}, samples: map[handover.EngineID]engine.Sample{},
		trouble: map[handover.EngineID]string{}, problems: map[string]string{}, passed: map[string]EngineState{}, devices: map[string]DeviceState{}, epoch: handover.NewEpoch(session, 0),
	}
}

// sawEpoch keeps the highest epoch that was given.
func (v *view) sawEpoch(e handover.Epoch) {
	v.mu.Lock()
	above := e.Session() > v.epoch.Session()
	v.epoch = max(v.epoch, e)
	v.state.Session = max(v.state.Session, e.Session())
	v.mu.Unlock()
	if above && v.outranked != nil {
		v.outranked(e.Session())
	}
}

func (v *view) lastEpoch() handover.Epoch {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.epoch
}

func (v *view) problem(about, text string) {
	v.mu.Lock()
	v.problems[about] = text
	v.mu.Unlock()
}

func (v *view) clearProblem(about string) {
	v.mu.Lock()
	delete(v.problems, about)
	v.mu.Unlock()
}

// engine keeps an engine's last sample, or why there is none.
func (v *view) engine(id handover.EngineID, s engine.Sample, trouble string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if trouble == "" {
		v.samples[id] = s
		delete(v.trouble, id)
		return
	}
	v.trouble[id] = trouble
}

// device keeps what a device was last seen to be.
func (v *view) device(d DeviceState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.devices[d.ID] = d
}

// relayed keeps what a server on no device was found to be.
func (v *view) relayed(es EngineState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.passed[es.Name] = es
}

// forgetRelayed is for a name that means another server now.
func (v *view) forgetRelayed(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.passed, name)
}

// publish lays the state out, at most every publishEvery.
func (v *view) publish(l *loop) {
	at := l.now()
	v.mu.Lock()
	due := at-v.laidOut >= publishEvery || v.laidOut == 0
	v.mu.Unlock()
	if due {
		v.layOut(l, at)
	}
}

func (v *view) layOut(l *loop, at handover.At) {
	var ledger *handover.State
	if l.core != nil {
		s := l.core.Snapshot()
		ledger = &s
		exportLedger(l.metrics, s)
	}
	reports, least := map[handover.TrainerID]*trainer.Report{}, map[handover.TrainerID]size.Bytes{}
	trainers, connected := make([]TrainerState, 0, len(l.trainers)), 0
	for _, t := range l.trainers {
		if t.session != nil {
			connected++
		}
		l.noteLate(t, ledger)
		reports[t.id], least[t.id] = t.report, t.minBudget
		trainers = append(trainers, TrainerState{
			ID: string(t.id), Connected: t.session != nil, PID: t.pid(), Baseline: int64(t.baseline),
			Floor: int64(t.hello.Floor), MinBudget: int64(t.minBudget), Report: t.report, Problem: firstOf(t.trouble, t.late),
		})
	}
	l.metrics.TrainersConnected(connected)
	duty := l.compute.state()
	if duty != nil && duty.Why != "" {
		l.metrics.DutyPrices(duty.ToTraining, duty.ToRequests)
	}
	sort.Slice(trainers, func(i, j int) bool { return trainers[i].ID < trainers[j].ID })
	v.mu.Lock()
	defer v.mu.Unlock()
	v.laidOut = at
	v.state.Deciding, v.state.Lending = l.core != nil, l.core != nil && l.lendable()
	v.state.Requests = l.requests.live()
	v.state.Duty = duty
	v.state.Ledger, v.state.Trainers = ledger, trainers
	v.state.Engines = v.engineStates(l)
	v.state.Memory = memoryOf(ledger, v.samples, reports, least)
}

// ledgerEngines are the engines of the core's last snapshot, which nobody changes; none
// before there is one.
func (v *view) ledgerEngines() []handover.EngineState {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state.Ledger == nil {
		return nil
	}
	return v.state.Ledger.Engines
}

func (v *view) engineStates(l *loop) []EngineState {
	out := make([]EngineState, 0, len(l.engines))
	for id, d := range l.engines {
		can := d.engine.Capabilities()
		es := EngineState{Name: string(id), Kind: can.Kind, Static: can.Static, PID: d.truth.known(), Problem: v.trouble[id]}
		switch {
		case d.models:
			es.Note = modelsNote
		case can.Static:
			es.Note = staticNote
		}
		if s, ok := v.samples[id]; ok {
			es.Sample = &s
		}
		out = append(out, es)
	}
	for _, es := range v.passed {
		out = append(out, es)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// read is the state as of now, for the admin API.
func (v *view) read() State {
	attained := v.score.state()
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.state
	s.SLO, s.Served = attained, v.score.served.state()
	s.Devices = make([]DeviceState, 0, len(v.devices))
	for _, d := range v.devices {
		s.Devices = append(s.Devices, d)
	}
	sort.Slice(s.Devices, func(i, j int) bool { return s.Devices[i].ID < s.Devices[j].ID })
	s.Problems = v.problemList()
	return s
}

func (v *view) problemList() []string {
	out := []string{}
	for about, text := range v.problems {
		out = append(out, about+": "+text)
	}
	for id, text := range v.trouble {
		out = append(out, "engine "+string(id)+": "+text)
	}
	for name, es := range v.passed {
		if es.Problem != "" {
			out = append(out, "upstream "+name+": "+es.Problem)
		}
	}
	sort.Strings(out)
	return out
}

// firstOf is the first text that says something.
func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
