package sidecar

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

// A reading that was under way when a trainer answered may show what it had before it
// took what it was ordered to give back: nothing is confirmed by it.
func TestReadingFromBeforeAnAckConfirmsNothing(t *testing.T) {
	for name, unread := range map[string]bool{"processes": false, "unread": true} {
		t.Run(name, func(t *testing.T) {
			p, err := device.Open(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			now := time.Unix(1000, 0)
			l := &loop{clock: func() time.Time { return now }, log: quietLogger(), start: now}
			peer := &trainerPeer{id: "t", process: p, wordAt: now, session: deaf{}, hello: trainer.Hello{Floor: size.GiB}}
			l.trainers = map[handover.TrainerID]*trainerPeer{"t": peer}
			g := newFakeGPU(8 * size.GiB)
			first, _ := g.Read(context.Background())
			d := newGPUDriver(l, config.Device{ID: "gpu0"}, foundGPU{g, first})
			peer.gpu = d
			r := device.Reading{Total: 8 * size.GiB, Used: 2 * size.GiB, Processes: map[int]size.Bytes{os.Getpid(): 2 * size.GiB}}
			if unread {
				r.Processes, r.Unread = nil, []int{os.Getpid()}
			}
			events := func(seen *gpuSeen) int {
				claims, peers, _ := d.claims(l, handover.State{}, seen)
				return len(d.judge(l, claims, peers, d.share.settle(tally{used: r.Used, claims: claims})))
			}
			if n := events(see(r, now)); n != 1 {
				t.Errorf("got %d words of a reading that began with the hello, want 1", n)
			}
			began := now.Add(time.Millisecond)
			now = now.Add(2 * time.Millisecond)
			if err := peer.order(handover.Order{Epoch: 7, Bytes: size.GiB}); err == nil {
				t.Fatal("the fake session took an order")
			}
			peer.word(trainer.Ack{Epoch: 7, Held: size.GiB}, now)
			if n := events(see(r, began)); n != 0 {
				t.Errorf("got %d words of a reading that began before the ack, want none", n)
			}
			began, now = now, now.Add(time.Millisecond)
			peer.word(trainer.Ack{Epoch: 7, Held: size.GiB}, now) // again, which must not hide what it holds
			if n := events(see(r, began)); n != 1 {
				t.Errorf("got %d words of a reading that began with the ack, want 1", n)
			}
		})
	}
}

// KV that an engine maps under its bound is in the ledger already: before the core
// has heard of it too, it is not somebody else's, or each burst would take the same
// bytes from training twice.
func TestKVUnderTheBoundIsTheEnginesBeforeItSaysSo(t *testing.T) {
	d := testDriver(newFakeGPU(80*size.GiB), nvidia("gpu0", "0", 0, 0))
	truth := &residency{}
	l := &loop{engines: map[handover.EngineID]*engineDriver{"e": {devices: []handover.DeviceID{"gpu0"}, truth: truth}}}
	snap := handover.State{Engines: []handover.EngineState{{ID: "e", Resident: 10 * size.GiB, Held: size.GiB, Bound: 20 * size.GiB}}}
	seen := see(device.Reading{Processes: map[int]size.Bytes{70: 25 * size.GiB}}, time.Now())
	if got := d.engines(l, snap, seen); got != 11*size.GiB {
		t.Errorf("got %v where its process is not known, want its word, 11.0GiB", got)
	}
	truth.shown.Store(70)
	if got := d.engines(l, snap, seen); got != 25*size.GiB {
		t.Errorf("got %v, want all that its process has, 25.0GiB", got)
	}
	seen.reading.Processes[70] = 40 * size.GiB
	if got := d.engines(l, snap, seen); got != 30*size.GiB {
		t.Errorf("got %v, want no more than the ledger counts, 30.0GiB", got)
	}
}

// The models of a server are in its process: their bytes are the engine's once, also
// while one is being loaded and has not said so.
func TestBytesOfAServersModelsAreItsOwnOnce(t *testing.T) {
	d := testDriver(newFakeGPU(80*size.GiB), nvidia("gpu0", "0", 0, 0))
	truth, on := &residency{}, []handover.DeviceID{"gpu0"}
	l := &loop{engines: map[handover.EngineID]*engineDriver{
		"s":   {devices: on, truth: truth, models: true},
		"s/a": {devices: on, truth: &residency{}, server: "s"},
		"s/b": {devices: on, truth: &residency{}, server: "s"},
	}}
	snap := handover.State{Engines: []handover.EngineState{
		{ID: "s", Resident: 2 * size.GiB}, {ID: "s/a", Held: 8 * size.GiB, Bound: 8 * size.GiB}, {ID: "s/b", Bound: 4 * size.GiB},
	}}
	seen := see(device.Reading{Processes: map[int]size.Bytes{70: 13 * size.GiB}}, time.Now())
	if got := d.engines(l, snap, seen); got != 10*size.GiB {
		t.Errorf("got %v where its process is not known, want its word and its models', 10.0GiB", got)
	}
	truth.shown.Store(70)
	if got := d.engines(l, snap, seen); got != 13*size.GiB {
		t.Errorf("got %v while b is loaded, want all that its process has, 13.0GiB", got)
	}
	seen.reading.Processes[70] = 20 * size.GiB
	if got := d.engines(l, snap, seen); got != 14*size.GiB {
		t.Errorf("got %v, want no more than the ledger counts, 14.0GiB", got)
	}
}
