package handover

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/lull-project/lull/size"
)

// TestTranscripts replays testdata/*.txt; -rewrite updates them. Each file is
// one scenario, its point on top. A line is "<time> <event> key=value ..."; its
// actions and, when it changed, each device's ledger follow it.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "config":
				return s.config(t, d)
			case "start":
				return s.start(t, d)
			case "run":
				return s.play(t, d.Input)
			}
			t.Fatalf("%s: unknown command %q", path, d.Cmd)
			return ""
		})
	})
}

type scenario struct {
	h         *Handover
	ledger    map[DeviceID]string
	engine    EngineID
	reserve   string
	violation string
}

// args are the key=value pairs of one line.
type args map[string]string

func (a args) bytes(t *testing.T, key string, otherwise Bytes) Bytes {
	v, ok := a[key]
	if !ok {
		return otherwise
	}
	b, err := size.Parse(v)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return b
}

func (a args) number(t *testing.T, key string) int {
	v, ok := a[key]
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

func (a args) float(t *testing.T, key string) float64 {
	v, ok := a[key]
	if !ok {
		return 0
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return f
}

func (a args) duration(t *testing.T, key string, otherwise time.Duration) time.Duration {
	v, ok := a[key]
	if !ok {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return d
}

func (a args) epoch(t *testing.T, key string) Epoch {
	v, ok := a[key]
	if !ok {
		return 0
	}
	var s, n uint32
	if _, err := fmt.Sscanf(v, "%d.%d", &s, &n); err != nil {
		t.Fatalf("%s=%s: %v", key, v, err)
	}
	return NewEpoch(s, n)
}

func (a args) or(key, otherwise string) string {
	if v, ok := a[key]; ok {
		return v
	}
	return otherwise
}

// stages are pipeline stages of one device each, as "64KiB,32KiB/100MiB": bytes a
// token, and the pool where the stage has its own.
func (a args) stages(t *testing.T, devices []DeviceID) (out []Stage) {
	if a["stages"] == "" {
		return nil
	}
	for i, text := range strings.Split(a["stages"], ",") {
		token, pool, _ := strings.Cut(text, "/")
		s := args{"token": token}
		if pool != "" {
			s["pool"] = pool
		}
		out = append(out, Stage{Devices: devices[i : i+1], BytesPerToken: s.bytes(t, "token", 0), Pool: s.bytes(t, "pool", 0)})
	}
	return out
}

var fences = map[string]Fence{"hard": FenceHard, "arena": FenceArena, "static": FenceStatic}

// config makes the core: the demo's device unless said otherwise. engines and
// devices are comma-separated names; an engine covers all devices.
func (s *scenario) config(t *testing.T, d *datadriven.TestData) string {
	a := args{}
	for _, c := range d.CmdArgs {
		a[c.Key] = strings.Join(c.Vals, ",")
	}
	c := DefaultConfig()
	c.Session = uint32(max(1, a.number(t, "session")))
	c.Mode, c.Hold, c.Owed = Mode(a.or("mode", "elastic")), HoldMode(a.or("hold", "auto")), OwedMode(a.or("owed", "fail_open"))
	c.Reserve = a.bytes(t, "reserve", 32*mib)
	c.Grace = a.duration(t, "grace", 0)
	if _, ok := a["shrinks"]; ok {
		c.Limit = Limit{PerSecond: a.float(t, "shrinks"), BytesPerSecond: a.bytes(t, "rate", 0), Arrivals: a.or("limit", "") == "arrivals"}
	}
	c.QueueLimit = a.number(t, "queue")
	if f, ok := a["kv_frac"]; ok {
		c.StaticKVFrac, _ = strconv.ParseFloat(f, 64)
	}
	var devices []DeviceID
	for _, id := range strings.Split(a.or("devices", "d0"), ",") {
		devices = append(devices, DeviceID(id))
		c.Devices = append(c.Devices, DeviceConfig{ID: DeviceID(id), Capacity: a.bytes(t, "capacity", 1056*mib), Headroom: a.bytes(t, "headroom", 64*mib)})
	}
	perToken, stages := 64*size.KiB, a.stages(t, devices)
	for _, s := range stages {
		perToken = max(perToken, s.BytesPerToken)
	}
	for _, id := range strings.Split(a.or("engines", "llm"), ",") {
		c.Engines = append(c.Engines, EngineConfig{
			ID: EngineID(id), Devices: devices, Fence: fences[a.or("fence", "hard")],
			Pool: a.bytes(t, "pool", 640*mib), Resident: a.bytes(t, "resident", 256*mib), StartBytes: a.bytes(t, "start", 0),
			Stages: stages, BytesPerToken: perToken, BlockTokens: 32, MaxModelLen: 4096, MinBound: a.bytes(t, "min", 0),
			Preempts: a.or("preempts", "true") == "true", AllocDelay: a.duration(t, "alloc_delay", 2*ms),
			MapAhead: a.duration(t, "map_ahead", 0), Whole: a.or("whole", "false") == "true", Idle: a.duration(t, "idle", 0),
			Await: a.duration(t, "await", 0), Server: "s", Warm: a.bytes(t, "warm", 0),
		})
	}
	h, err := New(c)
	if err != nil {
		return err.Error()
	}
	s.h, s.ledger, s.engine, s.reserve = h, map[DeviceID]string{}, c.Engines[0].ID, showReserve(h.Snapshot().Engines[0].Reserve)
	return "ok"
}

// start brings every engine up and the trainers named name@device/job (default
// t0@d0/gpt), answers every action at once, and stops at 1 s, when all that can
// be lent is. It prints the ledger.
func (s *scenario) start(t *testing.T, d *datadriven.TestData) string {
	a := args{"trainers": "t0@d0/gpt"}
	for _, c := range d.CmdArgs {
		a[c.Key] = strings.Join(c.Vals, ",")
	}
	s.bringUp(t, a)
	var out strings.Builder
	for _, d := range s.h.Snapshot().Devices {
		s.ledger[d.ID] = showLedger(d)
		fmt.Fprintln(&out, s.ledger[d.ID])
	}
	return out.String()
}

func (s *scenario) bringUp(t *testing.T, a args) {
	var auto func(acts []Action)
	now := At(0)
	auto = func(acts []Action) {
		for _, act := range acts {
			switch act := act.(type) {
			case Order:
				tr := s.h.trainer(act.Trainer)
				auto(s.h.Step(Acked{At: now, Trainer: act.Trainer, Epoch: act.Epoch, Held: act.Bytes}))
				auto(s.h.Step(TrainerSeen{At: now, Trainer: act.Trainer, Bytes: tr.floor + act.Bytes}))
			case SetBound:
				auto(s.h.Step(BoundSet{At: now, Engine: act.Engine, Epoch: act.Epoch, Bound: act.Bytes}))
			}
		}
	}
	for _, e := range s.h.engines {
		auto(s.h.Step(EngineSeen{Engine: e.cfg.ID, Bound: e.cfg.Pool}))
	}
	for _, spec := range strings.Split(a["trainers"], ",") {
		name, rest, _ := strings.Cut(spec, "@")
		dev, job, _ := strings.Cut(rest, "/")
		auto(s.h.Step(Hello{
			Trainer: TrainerID(name), Job: job, Device: DeviceID(dev), Floor: a.bytes(t, "floor", 96*mib), FloorKnown: true,
			MinBudget: a.bytes(t, "min", 16*mib), Suspended: a.bytes(t, "suspended", 0),
		}))
	}
	for now < a.duration(t, "until", time.Second) {
		now += 10 * ms
		for _, e := range s.h.engines {
			seen := EngineSeen{At: now, Engine: e.cfg.ID}
			if e.cfg.Await > 0 { // one that has nothing has lost it
				seen.Held, seen.Evictable, seen.Bound, seen.BoundEpoch = e.bound, e.bound, e.bound, e.epoch
			}
			auto(s.h.Step(seen))
		}
	}
}

func (s *scenario) play(t *testing.T, input string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		fmt.Fprintln(&out, line)
		for _, a := range s.h.Step(s.event(t, line)) {
			fmt.Fprintf(&out, "    %s\n", show(a))
		}
		for _, d := range s.h.Snapshot().Devices {
			if l := showLedger(d); l != s.ledger[d.ID] {
				s.ledger[d.ID] = l
				fmt.Fprintf(&out, "    = %s\n", l)
			}
		}
		if v := s.h.Snapshot().Engines[0].Violation; v != s.violation {
			s.violation = v
			if v == "" {
				v = "none"
			}
			fmt.Fprintf(&out, "    = violation: %s\n", v)
		}
		if r := showReserve(s.h.Snapshot().Engines[0].Reserve); r != s.reserve {
			s.reserve = r
			fmt.Fprintf(&out, "    = reserve=%s\n", r)
		}
	}
	return out.String()
}

func (s *scenario) event(t *testing.T, line string) Event {
	f := strings.Fields(line)
	at, err := time.ParseDuration(f[0])
	if err != nil || len(f) < 2 {
		t.Fatalf("%q: want a time and an event", line)
	}
	a := args{}
	for _, kv := range f[2:] {
		k, v, _ := strings.Cut(kv, "=")
		a[k] = v
	}
	eng, tr := EngineID(a.or("e", string(s.engine))), TrainerID(a.or("tr", "t0"))
	switch f[1] {
	case "tick":
		return Tick{At: at}
	case "arrive":
		return Arrived{
			At: at, ID: RequestID(a["id"]), Engine: eng, PromptBytes: a.number(t, "prompt"), MaxTokens: a.number(t, "max"),
			NeedBytes: a.bytes(t, "need", 0), Slack: a.duration(t, "slack", 100*ms), Tier: a["tier"], Promised: a["promised"] == "true",
		}
	case "progress":
		return Progressed{At: at, Counts: []Progress{{ID: RequestID(a["id"]), OutputTokens: a.number(t, "out")}}}
	case "finish":
		return Finished{At: at, ID: RequestID(a["id"]), PromptTokens: a.number(t, "prompt"), OutputTokens: a.number(t, "out")}
	case "engine":
		return EngineSeen{
			At: at, Engine: eng, Held: a.bytes(t, "held", 0), Evictable: a.bytes(t, "evictable", 0), Needed: a.bytes(t, "needed", 0),
			Bound: a.bytes(t, "bound", 0), BoundEpoch: a.epoch(t, "epoch"), Resident: a.bytes(t, "resident", 0),
			Running: a.number(t, "running"), Waiting: a.number(t, "waiting"), Short: a.bytes(t, "short", 0),
		}
	case "engine-down":
		return EngineDown{At: at, Engine: eng, Dead: true}
	case "engine-unread":
		return EngineUnread{At: at, Engine: eng}
	case "engine-up":
		return EngineUp{At: at, Engine: eng}
	case "bound-set":
		return BoundSet{At: at, Engine: eng, Epoch: a.epoch(t, "epoch"), Bound: a.bytes(t, "bound", 0), Held: a.bytes(t, "held", 0)}
	case "bound-failed":
		return BoundFailed{At: at, Engine: eng, Epoch: a.epoch(t, "epoch")}
	case "prices":
		return Priced{At: at, Sample: a.float(t, "sample"), Miss: a.float(t, "miss"), Tiers: map[string]float64{"gold": a.float(t, "gold")}}
	case "reserve-off":
		return ReserveOff{At: at, Off: a["off"] == "true"}
	case "capacity":
		return CapacitySeen{At: at, Device: DeviceID(a.or("d", "d0")), Capacity: a.bytes(t, "capacity", 0)}
	}
	return s.trainerEvent(t, line, at, f[1], tr, a)
}

func (s *scenario) trainerEvent(t *testing.T, line string, at At, kind string, tr TrainerID, a args) Event {
	switch kind {
	case "hello":
		_, known := a["floor"]
		return Hello{
			At: at, Trainer: tr, Job: a.or("job", "gpt"), Device: DeviceID(a.or("d", "d0")), Floor: a.bytes(t, "floor", 0), FloorKnown: known,
			Ceiling: a.bytes(t, "ceiling", 0), Held: a.bytes(t, "held", 0), LastEpoch: a.epoch(t, "epoch"),
			MinBudget: a.bytes(t, "min", 0), Suspended: a.bytes(t, "suspended", 0),
		}
	case "ack":
		return Acked{At: at, Trainer: tr, Epoch: a.epoch(t, "epoch"), Held: a.bytes(t, "held", 0), How: a.or("how", "drop")}
	case "floor":
		return FloorAsked{At: at, Trainer: tr, Floor: a.bytes(t, "floor", 0)}
	case "rated": // by one point: samples a second with so many bytes
		return TrainerRated{At: at, Trainer: tr, Curve: []Rate{{a.bytes(t, "bytes", 0), a.float(t, "samples")}}}
	case "gone":
		return TrainerGone{At: at, Trainer: tr}
	case "seen":
		return TrainerSeen{At: at, Trainer: tr, Bytes: a.bytes(t, "bytes", 0)}
	}
	t.Fatalf("%q: unknown event", line)
	return nil
}

func show(a Action) string {
	switch a := a.(type) {
	case Order:
		verb := "order"
		if a.Shrink {
			verb = "order shrink"
		}
		floor := ""
		if a.Reason == "floor" {
			floor = fmt.Sprintf(" floor=%v", a.Floor)
		}
		return fmt.Sprintf("%s %s epoch=%v budget=%v within=%v reason=%s%s%s", verb, a.Trainer, a.Epoch, a.Bytes, a.Within, a.Reason, floor, showStage(a.Stage))
	case SetBound:
		return fmt.Sprintf("bound %s epoch=%v bound=%v reason=%s", a.Engine, a.Epoch, a.Bytes, a.Reason)
	case ReadTrainer:
		return fmt.Sprintf("read %s", a.Trainer)
	case Hold:
		return fmt.Sprintf("hold %s%s", a.ID, showStage(a.Stage))
	case Release:
		return fmt.Sprintf("release %s %s", a.ID, a.Outcome)
	case Reject:
		return fmt.Sprintf("reject %s %s retry_after=%v", a.ID, a.Outcome, a.RetryAfter)
	case RefuseFloor:
		return fmt.Sprintf("refuse floor %s stays=%v", a.Trainer, a.Floor)
	case Wake:
		return fmt.Sprintf("wake %v", a.At)
	case HandoverDone:
		verb := "grow"
		if a.Shrink {
			verb = "shrink"
		}
		return fmt.Sprintf("done %s %s epoch=%v %v->%v freed=%v decided=%v acked=%v confirmed=%v reason=%s %s %s%s",
			verb, a.Trainer, a.Epoch, a.From, a.To, a.Freed, a.Decided, a.Acked, a.Confirmed, a.Reason, a.Result, a.How, showStage(a.Stage))
	}
	return fmt.Sprintf("unknown action %T", a)
}

func showStage(s StageID) string {
	if s == (StageID{}) {
		return ""
	}
	return fmt.Sprintf(" stage=%v", s)
}

// showReserve is an engine's reserve and why.
func showReserve(r ReserveState) string { return fmt.Sprintf("%v %s", r.Bytes, r.Why) }

func showLedger(d DeviceState) string {
	s := fmt.Sprintf("%s resident=%v bound=%v kv=%v floor=%v budget=%v trainer=%v free=%v",
		d.ID, d.Resident, d.KVBound, d.KVCharged, d.Floor, d.Budget, d.TrainerCharged, d.Free)
	if d.Over > 0 {
		s += fmt.Sprintf(" OVER=%v", d.Over)
	}
	return s
}
