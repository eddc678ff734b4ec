package handover

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestConfigErrorsNameKeyValueAndRule(t *testing.T) {
	for _, c := range []struct {
		spoil func(*Config)
		want  string
	}{
		{func(c *Config) { c.Mode = "fast" }, `policy.mode: got "fast", want elastic or static`},
		{func(c *Config) { c.StaticKVFrac = 1.5 }, `policy.static_kv_frac: got 1.5, want a fraction in [0, 1]`},
		{func(c *Config) { c.Quantum = -mib }, `policy.quantum: got -1.0MiB, want more than 0`},
		{func(c *Config) { c.Reserve = -1 }, `policy.reserve: got -1B, want 0 or more`},
		{func(c *Config) { c.AckWithin = -ms }, `admission.within: got -1ms, want more than 0`},
		{func(c *Config) { c.Hold = "always" }, `admission.hold: got "always", want auto or never`},
		{func(c *Config) { c.Owed = "wait" }, `admission.owed: got "wait", want fail_open or refuse`},
		{func(c *Config) { c.QueueLimit = -1 }, `admission.queue_limit: got -1, want more than 0`},
		{func(c *Config) { c.Quantile = 1 }, `policy.quantile: got 1, want a fraction in (0, 1)`},
		{func(c *Config) { c.Horizon = -ms }, `policy.horizon: got -1ms, want more than 0`},
		{func(c *Config) { c.Settle = -ms }, `policy.settle: got -1ms, want 0 or more`},
		{func(c *Config) { c.Grace = -ms }, `policy.grace: got -1ms, want 0 or more`},
		{func(c *Config) { c.Devices[0].Capacity = 0 }, `devices.d0.capacity: got 0B, want more than 0`},
		{func(c *Config) { c.Devices[0].Headroom = 2000 * mib }, `devices.d0.headroom: got 2.0GiB, want at least 0 and below the capacity 1.0GiB`},
		{func(c *Config) { c.Devices = append(c.Devices, c.Devices[0]) }, `devices.d0: named twice, want one entry a device`},
		{func(c *Config) { c.Engines = append(c.Engines, c.Engines[0]) }, `engines.llm: named twice, want one entry an engine`},
		{func(c *Config) { c.Engines[0].Pool = 0 }, `engines.llm.pool: got 0B, want more than 0`},
		{func(c *Config) { c.Engines[0].Devices = nil }, `engines.llm.devices: got none, want at least one`},
		{func(c *Config) { c.Engines[0].Devices = []DeviceID{"x"} }, `engines.llm.devices: got "x", want one of the devices`},
		{func(c *Config) { c.Engines[0].Devices = []DeviceID{"d0", "d0"} }, `engines.llm.devices: got "d0" twice, want each device once`},
		{func(c *Config) { c.Engines[0].Whole, c.Engines[0].Fence = true, FenceArena }, `engines.llm.fence: got arena for an engine that gives its pool whole, want hard`},
		{func(c *Config) { c.Engines[0].Idle = -1 }, `engines.llm.idle: got -1ns, want 0 (30s) or more`},
		{func(c *Config) { c.Engines[0].Await = time.Second }, `engines.llm.await: got 1s for an engine whose pool does not go whole, want none`},
		{func(c *Config) { c.Engines[0].Await = -1 }, `engines.llm.await: got -1ns, want 0 (it keeps requests itself) or more`},
		{func(c *Config) { c.Engines[0].Warm = -1 }, `engines.llm.warm: got -1B, want 0 (none) or more`},
		{func(c *Config) { c.Engines[0].Warm, c.Engines[0].Server = mib, "s" }, `engines.llm.warm: got 1.0MiB, want it for an engine that gives its pool whole and has a server`},
		{func(c *Config) { c.Engines[0].Warm, c.Engines[0].Whole = mib, true }, `engines.llm.warm: got 1.0MiB, want it for an engine that gives its pool whole and has a server`},
		{func(c *Config) {
			first := &c.Engines[0]
			first.Warm, first.Whole, first.Server = mib, true, "s"
			second := *first
			second.ID, second.Warm = "b", 2*mib
			c.Engines = append(c.Engines, second)
		}, `engines.b.warm: got 2.0MiB, want 1.0MiB as the other engines of s have`},
		{func(c *Config) { c.Engines[0].Fence = 7 }, `engines.llm.fence: got 7, want hard, arena or static`},
	} {
		cfg := demoConfig()
		c.spoil(&cfg)
		_, err := New(cfg)
		if err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("got %v, want ... %s", err, c.want)
		}
	}
}

func TestDefaultsFillWhatMakesNoSense(t *testing.T) {
	h, err := New(Config{Devices: []DeviceConfig{{ID: "d0", Capacity: mib}}})
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	if h.cfg.Quantum != want.Quantum || h.cfg.Mode != want.Mode || h.cfg.AckWithin != want.AckWithin || h.cfg.QueueLimit != want.QueueLimit {
		t.Fatalf("got %+v, want the defaults %+v", h.cfg, want)
	}
}

func TestBreachByTheCoreItselfPanics(t *testing.T) {
	h, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		want := "handover: ledger exceeds capacity by 3.0MiB after epoch=1.1"
		if got := recover(); got != want {
			t.Fatalf("panic %v, want %s", got, want)
		}
	}()
	h.Step(EngineSeen{Engine: "llm", Bound: demoElastic})
	h.noteOver()
	h.engines[0].bound += 99 * mib // a bug: 96 MiB are free
	h.checkLedger()
}

type strange struct{}

func (strange) when() At { return 0 }

func TestUnknownEventPanics(t *testing.T) {
	h, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		want := "handover: event handover.strange has no handler"
		if got := recover(); got != want {
			t.Fatalf("panic %v, want %s", got, want)
		}
	}()
	h.Step(strange{})
}

func TestEventsAboutUnknownPartiesChangeNothing(t *testing.T) {
	h, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	h.Step(Tick{})
	before := h.Snapshot()
	for _, e := range []Event{
		EngineSeen{Engine: "x", Held: mib}, EngineDown{Engine: "x"}, EngineUnread{Engine: "x"}, EngineUp{Engine: "x"}, BoundSet{Engine: "x"}, BoundFailed{Engine: "x"},
		Hello{Trainer: "t", Device: "x"}, Acked{Trainer: "t"}, FloorAsked{Trainer: "t", Floor: mib}, TrainerGone{Trainer: "t"},
		TrainerSeen{Trainer: "t", Bytes: mib}, CapacitySeen{Device: "x"}, Finished{ID: "r"}, Progressed{Counts: []Progress{{ID: "r", OutputTokens: 3}}},
		BoundSet{Engine: "llm", Epoch: 3}, BoundFailed{Engine: "llm", Epoch: 3}, EngineUp{Engine: "llm"},
	} {
		if acts := h.Step(e); len(acts) > 0 {
			t.Errorf("%T about nobody: %v, want no action", e, acts)
		}
	}
	a, _ := json.Marshal(before)
	b, _ := json.Marshal(h.Snapshot())
	if string(a) != string(b) {
		t.Errorf("state went from\n%s to\n%s", a, b)
	}
	acts := h.Step(Arrived{ID: "r", Engine: "x"})
	if len(acts) != 1 || acts[0] != (Release{ID: "r", Outcome: OutcomeForwarded}) {
		t.Errorf("a request for an unknown engine: %v, want it released", acts)
	}
}

func TestSecondArrivalOfALiveRequestIsDropped(t *testing.T) {
	h, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	h.Step(Arrived{ID: "r", Engine: "llm", NeedBytes: mib})
	if acts := h.Step(Arrived{ID: "r", Engine: "llm", NeedBytes: mib}); len(acts) > 0 {
		t.Fatalf("a second arrival: %v, want nothing", acts)
	}
	if n := h.Snapshot().Engines[0].Live; n != 1 {
		t.Fatalf("%d live requests, want 1", n)
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	h, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	h.Step(Tick{At: 5 * ms})
	h.Step(Tick{At: 3 * ms})
	if got := h.Snapshot().At; got != 5*ms {
		t.Fatalf("now %v after an older tick, want 5ms", got)
	}
}

func TestTailFollowsMeasuredHandovers(t *testing.T) {
	l := newTail(12 * ms)
	if l.mean != 12*ms || l.high() != 24*ms {
		t.Fatalf("before any handover: mean %v, high %v, want the deadline and twice of it", l.mean, l.high())
	}
	for range 100 {
		l.learn(2 * ms)
	}
	if l.mean > 2100*time.Microsecond || l.high() > 3*ms {
		t.Fatalf("after 100 handovers of 2ms: mean %v, high %v", l.mean, l.high())
	}
	l.learn(30 * ms)
	if l.high() < 20*ms {
		t.Fatalf("after one of 30ms: high %v, want it to warn at once", l.high())
	}
}
