package handover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// models is a server whose models move whole, on a device with room for so many of
// 300 MiB, driven by hand.
type models struct {
	t   *testing.T
	h   *Handover
	now At
	ids int
}

const modelBytes = 300 * mib

func newModels(t *testing.T, room int, warm Bytes, names ...EngineID) *models {
	t.Helper()
	c := DefaultConfig()
	c.Session, c.Grace = 1, 0
	c.Devices = []DeviceConfig{{ID: "d0", Capacity: Bytes(room)*modelBytes + 100*mib + 64*mib, Headroom: 64 * mib}}
	for _, id := range names {
		c.Engines = append(c.Engines, EngineConfig{
			ID: id, Devices: []DeviceID{"d0"}, Fence: FenceHard, Pool: modelBytes, BytesPerToken: 1,
			Whole: true, Idle: 5 * time.Second, Await: time.Minute, Server: "s", Warm: warm,
		})
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &models{t: t, h: h}
}

// step gives an event and returns what came of it, but for Wake.
func (m *models) step(e Event) (acts []string) {
	for _, a := range m.h.Step(e) {
		if _, ok := a.(Wake); !ok {
			acts = append(acts, show(a))
		}
	}
	return acts
}

// come says that the engines are as given, and confirms their first orders.
func (m *models) come(loaded ...EngineID) {
	for _, e := range m.h.engines {
		held := Bytes(0)
		if slices.Contains(loaded, e.cfg.ID) {
			held = modelBytes
		}
		m.step(EngineSeen{At: m.now, Engine: e.cfg.ID, Held: held, Evictable: held, Bound: held})
	}
	m.confirm()
}

// confirm has every engine obey its last order.
func (m *models) confirm() (acts []string) {
	for _, e := range m.h.engines {
		if !e.settled {
			acts = append(acts, m.step(BoundSet{At: m.now, Engine: e.cfg.ID, Epoch: e.epoch, Bound: e.bound, Held: e.bound})...)
		}
	}
	return acts
}

// ask is one request, which ends at once.
func (m *models) ask(engine EngineID) {
	m.ids++
	id := RequestID(fmt.Sprint("r", m.ids))
	m.now += 10 * ms
	m.step(Arrived{At: m.now, ID: id, Engine: engine})
	m.step(Finished{At: m.now, ID: id})
}

// pass lets time pass with everybody read.
func (m *models) pass(d time.Duration) (acts []string) {
	for end := m.now + d; m.now < end; m.now += 100 * ms {
		for _, e := range m.h.engines {
			acts = append(acts, m.step(EngineSeen{At: m.now, Engine: e.cfg.ID, Held: e.held, Evictable: e.held, Bound: e.bound, BoundEpoch: e.epoch})...)
		}
		acts = append(acts, m.confirm()...)
		if tr := m.h.trainer("t0"); tr != nil && tr.open {
			acts = append(acts, m.step(Acked{At: m.now, Trainer: "t0", Epoch: tr.epoch, Held: tr.budget})...)
			acts = append(acts, m.step(TrainerSeen{At: m.now, Trainer: "t0", Bytes: 50*mib + tr.budget})...)
		}
	}
	return acts
}

// train has a trainer come that could take all.
func (m *models) train() {
	m.step(Hello{At: m.now, Trainer: "t0", Job: "gpt", Device: "d0", Floor: 50 * mib, FloorKnown: true})
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestModelThatExpectsFewestRequestsMakesRoomForOneThatIsAsked(t *testing.T) {
	m := newModels(t, 2, 0, "a", "b", "c")
	m.come("a", "b")
	for range 20 {
		m.ask("a")
	}
	m.ask("b")
	m.pass(10 * time.Second)
	want(t, m.step(Arrived{At: m.now, ID: "x", Engine: "c"}), "bound b epoch=1.4 bound=0B reason=evict", "hold x")
	want(t, m.step(Tick{At: m.now + ms}))
	want(t, m.confirm(), "bound c epoch=1.5 bound=300.0MiB reason=demand", "release x held_forwarded")
}

func TestModelWithARequestIsNotUnloadedForAnother(t *testing.T) {
	m := newModels(t, 2, 0, "a", "b", "c")
	m.come("a", "b")
	for range 20 {
		m.ask("a")
	}
	m.pass(10 * time.Second)
	want(t, m.step(Arrived{At: m.now, ID: "y", Engine: "b"}), "release y forwarded")
	want(t, m.step(Arrived{At: m.now, ID: "x", Engine: "c"}), "bound a epoch=1.4 bound=0B reason=evict", "hold x")
}

func TestModelsAreLoadedAtOnceIntoRoomWhileTrainingMakesMore(t *testing.T) {
	m := newModels(t, 2, 0, "a", "b")
	m.come()
	m.train()
	m.pass(10 * time.Second)
	tr := m.h.trainer("t0")
	if tr.budget < modelBytes {
		t.Fatalf("training has %v, want what is lent", tr.budget)
	}
	m.h.device("d0").capacity += modelBytes // somebody else has left: room for one
	got := m.step(Arrived{At: m.now, ID: "x", Engine: "a"})
	if e := m.h.engine("a"); e.bound != modelBytes || !slices.Contains(got, "hold x") {
		t.Errorf("with room: got %q, want it loaded at once", got)
	}
	got = m.step(Arrived{At: m.now, ID: "y", Engine: "b"})
	if len(got) != 2 || got[1] != "hold y" || got[0][:15] != "order shrink t0" {
		t.Errorf("without room: got %q, want an order to training in the Step in which the other loads, and a hold", got)
	}
	if m.h.engine("a").settled {
		t.Error("the first is loaded already, want that it loads while training gives back")
	}
}

// TestWarmModelsStay: of idle models those stay that expect most requests, as far as
// the watermark goes.
func TestWarmModelsStay(t *testing.T) {
	for _, c := range []struct {
		warm  Bytes
		stays []EngineID
	}{{0, nil}, {modelBytes - 1, nil}, {modelBytes, []EngineID{"b"}}, {2*modelBytes + mib, []EngineID{"a", "b"}}, {size.GiB, []EngineID{"a", "b", "c"}}} {
		m := newModels(t, 3, c.warm, "a", "b", "c")
		m.come("a", "b", "c")
		for i := range 30 {
			m.ask("b")
			if i%5 == 0 {
				m.ask("a")
			}
		}
		m.ask("c")
		m.train()
		m.pass(5 * time.Minute) // two mean gaps of c, and the idle time
		var stays []EngineID
		for _, e := range m.h.engines {
			if e.bound > 0 {
				stays = append(stays, e.cfg.ID)
			}
		}
		if !slices.Equal(stays, c.stays) {
			t.Errorf("warm %v: %v stay, want %v", c.warm, stays, c.stays)
		}
	}
}

// TestFullQueueOfOneModelRefusesNoRequestOfAnother: those that wait for a model that
// loads, and their number, are no matter of other engines.
func TestFullQueueOfOneModelRefusesNoRequestOfAnother(t *testing.T) {
	m := newModels(t, 2, 0, "a", "b")
	m.h.cfg.QueueLimit = 2
	m.come()
	m.h.graceAt = m.now + time.Hour // nobody loads
	arrive := func(id RequestID, engine EngineID) []string {
		return m.step(Arrived{At: m.now, ID: id, Engine: engine})
	}
	want(t, arrive("a1", "a"), "hold a1")
	want(t, arrive("a2", "a"), "hold a2")
	want(t, arrive("a3", "a"), "reject a3 rejected_capacity retry_after=1s")
	want(t, arrive("b1", "b"), "hold b1")
	want(t, arrive("b2", "b"), "hold b2")
	want(t, arrive("b3", "b"), "reject b3 rejected_capacity retry_after=1s")
	m.step(Finished{At: m.now, ID: "a1"}) // its client has left
	want(t, arrive("b4", "b"), "reject b4 rejected_capacity retry_after=1s")
	want(t, arrive("a4", "a"), "hold a4")
}

// TestModelThatIsNotThereIsNotLoadedWhenItsServerDoesNotAnswer: after a start of Lull the
// trainers that hold its bytes may yet have to come.
func TestModelThatIsNotThereIsNotLoadedWhenItsServerDoesNotAnswer(t *testing.T) {
	m := newModels(t, 1, 0, "a")
	m.h.graceAt = m.now + 2*time.Second
	want(t, m.step(EngineSeen{At: m.now, Engine: "a"}), "bound a epoch=1.1 bound=0B reason=fence")
	want(t, m.step(BoundFailed{At: m.now, Engine: "a", Epoch: m.h.engine("a").epoch}))
	want(t, m.step(Tick{At: m.now + boundWait}), "bound a epoch=1.2 bound=0B reason=retry")
}

// TestNobodyWaitsForAModelThatHasNoRoom: training's floor stays, so that the model does
// not come before the job has ended.
func TestNobodyWaitsForAModelThatHasNoRoom(t *testing.T) {
	m := newModels(t, 1, 0, "a")
	m.come()
	hello := func(floor Bytes) []string {
		return m.step(Hello{At: m.now, Trainer: "t0", Job: "gpt", Device: "d0", Floor: floor, FloorKnown: true})
	}
	hello(100 * mib)
	want(t, m.step(Arrived{At: m.now, ID: "r1", Engine: "a"}), "hold r1")
	if got := hello(101 * mib); !slices.Contains(got, "release r1 forwarded_unconfirmed") {
		t.Errorf("got %q, want the one that waits released", got)
	}
	want(t, m.step(Arrived{At: m.now, ID: "r2", Engine: "a"}), "release r2 forwarded")
	m.step(TrainerGone{At: m.now, Trainer: "t0", Left: true})
	if got := m.step(Arrived{At: m.now, ID: "r3", Engine: "a"}); !slices.Contains(got, "hold r3") {
		t.Errorf("the job has ended: got %q, want it to wait for the model", got)
	}
}

// TestFloorThatWouldKeepAPoolAwayForEverIsRefused: though its bytes are free while the
// pool is away.
func TestFloorThatWouldKeepAPoolAwayForEverIsRefused(t *testing.T) {
	m := newModels(t, 1, 0, "a")
	m.come("a")
	m.train()
	m.pass(40 * time.Second)
	if m.h.engine("a").bound != 0 {
		t.Fatal("the model was not lent")
	}
	ask := func(floor Bytes) []string {
		acts := m.step(FloorAsked{At: m.now, Trainer: "t0", Floor: floor})
		m.pass(time.Second)
		return acts
	}
	want(t, ask(101*mib), "refuse floor t0 stays=50.0MiB")
	if got := ask(100 * mib); len(got) == 0 || m.h.trainer("t0").floor != 100*mib {
		t.Errorf("beside which the model fits: got %q and a floor of %v, want 100.0MiB", got, m.h.trainer("t0").floor)
	}
}

// TestServerThatRestartsWhileItsModelsOrderIsOwedHasNoModel: what was confirmed before
// says nothing of it.
func TestServerThatRestartsWhileItsModelsOrderIsOwedHasNoModel(t *testing.T) {
	m := newModels(t, 1, 0, "a")
	m.come("a")
	m.h.setBound(m.h.engine("a"), modelBytes, reasonFence)
	m.step(EngineSeen{At: m.now, Engine: "a"}) // nothing held, by nobody's order
	want(t, m.step(Arrived{At: m.now, ID: "r", Engine: "a"}), "hold r")
	want(t, m.confirm(), "release r held_forwarded")
}
