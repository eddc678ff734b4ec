package sidecar

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

const hidden = "NVML lists no process in this PID namespace"

// truths are the ways in which a driver shows processes, and what is said of each.
var truths = map[string]struct {
	set        func(*fakeGPU)
	truth, why string
}{
	"processes": {func(*fakeGPU) {}, truthProcesses, ""},
	"hidden":    {func(g *fakeGPU) { g.why = hidden }, truthDevice, hidden},
	"unread":    {func(g *fakeGPU) { g.unread = true }, truthDevice, "NVML lists a trainer's process without its bytes"},
}

func TestBurstTakesMemoryFromTrainingOnAGPUAndGivesItBack(t *testing.T) {
	for name, c := range truths {
		t.Run(name, func(t *testing.T) {
			g := newFakeGPU(rigTotal)
			c.set(g)
			r := newRigOn(t, g.open, onGPU)
			startFakeTrainer(t, r.socket, "honest")
			r.untilHeld(350 * size.MiB)
			r.mustAllBeWhole(r.burst(12, 400, 60))
			var list []Handover
			r.getJSON("/api/v1/handovers", &list)
			if !slices.ContainsFunc(list, func(h Handover) bool { // late is confirmed after the order's deadline: a loaded machine's
				return h.Direction == "shrink" && (h.Result == "confirmed" || h.Result == "late") && h.FreedBytes > 0
			}) {
				t.Errorf("no confirmed shrink that freed bytes among %+v", list)
			}
			back := 350 * size.MiB
			if c.truth == "device" {
				// What these processes' own heaps grew by counts as training's there: on a busy machine
				// an order stays unconfirmed for that, and the budget where it is.
				back = 200 * size.MiB
			}
			r.untilHeld(back)
			s := r.state()
			d := s.Devices[0]
			if d.Truth != c.truth || d.Why != c.why || d.UUID != fakeUUID || d.Kind != config.KindNVIDIA || d.Total != int64(rigTotal) || s.Trainers[0].Baseline != 0 {
				t.Errorf("got %+v, want truth %s, %q", d, c.truth, c.why)
			}
			said := slices.ContainsFunc(s.Problems, func(p string) bool {
				return p == "device host0: "+c.why+"; training there is judged by what the whole device shows, with twice the headroom"
			})
			if said != (c.why != "") {
				t.Errorf("problems %q, want them to say %q", s.Problems, c.why)
			}
			r.stop()
			if g.closed != 1 {
				t.Errorf("the GPU was closed %d times", g.closed)
			}
		})
	}
}

func TestGPUMemoryThatALiarKeepsIsLentToNobody(t *testing.T) {
	for _, name := range []string{"processes", "hidden"} {
		c := truths[name]
		t.Run(name, func(t *testing.T) {
			g := newFakeGPU(rigTotal)
			c.set(g)
			r := newRigOn(t, g.open, onGPU)
			p := startFakeTrainer(t, r.socket, "lying")
			r.untilHeld(300 * size.MiB)
			r.mustAllBeWhole(r.burst(8, 600, 40))
			var enough atomic.Bool
			var load sync.WaitGroup
			load.Go(func() {
				for !enough.Load() {
					r.mustAllBeWhole(r.burst(8, 600, 40))
				}
			})
			// The engine's word and the GPU's reading are of two times, apart by as much as a
			// busy machine is late; once both have come, all that training has is counted,
			// while it says that it gave all back.
			r.until("what the liar has is lent to nobody", func() bool {
				has, err := device.ReadTree(p.Pid)
				if err != nil {
					t.Fatal(err)
				}
				s := r.state()
				counted := size.Bytes(s.Devices[0].Others)
				for _, trains := range s.Ledger.Trainers {
					counted += trains.Floor + trains.Held
					if trains.Budget > 0 {
						return false
					}
				}
				return counted >= has-rigHeadroom && s.Ledger.Engines[0].Bound+has+rigResident <= rigTotal
			})
			enough.Store(true)
			load.Wait()
		})
	}
}

func TestKilledTrainersGPUMemoryIsUsedOnceItIsGone(t *testing.T) {
	for _, name := range []string{"processes", "hidden"} {
		c := truths[name]
		t.Run(name, func(t *testing.T) {
			g := newFakeGPU(rigTotal)
			c.set(g)
			r := newRigOn(t, g.open, onGPU)
			p := startFakeTrainer(t, r.socket, "silent")
			r.untilHeld(300 * size.MiB)
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.until("the ledger has forgotten the trainer", func() bool { s := r.state(); return len(s.Trainers)+len(s.Ledger.Trainers) == 0 })
			r.mustAllBeWhole(r.burst(4, 200, 20))
		})
	}
}

func TestWhatOthersHoldOfAGPUIsNotLent(t *testing.T) {
	g := newFakeGPU(rigTotal)
	r := newRigOn(t, g.open, onGPU)
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(350 * size.MiB)
	r.until("nothing more is lent", func() bool { d := r.state().Ledger.Devices[0]; return d.Free < 32*size.MiB && r.held() == d.Budget })
	before, had := r.state().Ledger.Devices[0].Capacity, r.held()
	g.set(func(g *fakeGPU) { g.foreign = 300 * size.MiB })
	r.until("the capacity is less by what somebody took, and training has made room", func() bool {
		d := r.state().Ledger.Devices[0]
		return d.Capacity <= before-256*size.MiB && d.Over == 0 && r.held() <= had-200*size.MiB
	})
	if d := r.state().Devices[0]; d.Others < int64(300*size.MiB) || d.Capacity != int64(r.state().Ledger.Devices[0].Capacity) {
		t.Errorf("got %+v, want the others' bytes and the ledger's capacity", d)
	}
	g.set(func(g *fakeGPU) { g.foreign = 0 })
	r.untilHeld(had - 32*size.MiB)
	if text := r.metrics(); !strings.Contains(text, `lull_memory_bytes{device="host0",owner="all",term="others"}`) {
		t.Error("no series of what others hold")
	}
}

func (r *rig) metrics() string {
	r.t.Helper()
	resp, err := r.client.Get(r.admin + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	_ = resp.Write(&b)
	return b.String()
}

func TestGPUThatCannotBeReadStopsNoRequest(t *testing.T) {
	g := newFakeGPU(rigTotal)
	r := newRigOn(t, g.open, onGPU)
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(300 * size.MiB)
	g.set(func(g *fakeGPU) {
		g.broken = errors.New("device: gpu " + fakeUUID + ": the driver has not answered: none in 2s")
	})
	const said = "device: gpu " + fakeUUID + ": the driver has not answered: none in 2s; nothing that training gives back there is used until it answers"
	r.until("the state says so", func() bool {
		s := r.state()
		return slices.Contains(s.Problems, "device host0: "+said) && s.Trainers[0].Problem == said
	})
	r.mustAllBeWhole(r.burst(6, 300, 20))
	if text := r.metrics(); strings.Contains(text, `lull_memory_bytes{device="host0",owner="all",term="used"}`) {
		t.Error("/metrics still has the driver's figures of before")
	}
	g.set(func(g *fakeGPU) { g.broken = nil })
	r.until("the problem is gone", func() bool {
		s := r.state()
		return !slices.Contains(s.Problems, "device host0: "+said) && s.Trainers[0].Problem == ""
	})
	r.untilHeld(300 * size.MiB)
}

func TestTrainerOnAnotherGPUIsSaid(t *testing.T) {
	g := newFakeGPU(rigTotal)
	r := newRigOn(t, g.open, onGPU)
	r.hello("astray", "cuda:0", os.Getpid(), 0, 64<<20, 0) // this test's own process is not on the fake GPU
	r.until("the trainer's problem", func() bool {
		s := r.state()
		return len(s.Trainers) == 1 && s.Trainers[0].Problem == "NVML does not list its process on this GPU: it may be on another (LULL_DEVICE names one of lull.yaml)"
	})
}

func TestOneSidecarWritesAGPUWhateverItIsCalled(t *testing.T) {
	g := newFakeGPU(rigTotal)
	r := newRigOn(t, g.open, onGPU)
	second := r.file
	second.Devices = slices.Clone(second.Devices)
	second.Devices[0].ID, second.Engines[0].Devices = "other", []string{"other"}
	_, err := newSidecar(second, quietLogger(), g.open)
	if want := "device: lock " + filepath.Join(r.dir, fakeUUID+".lock") + ": another sidecar holds it; one sidecar writes a device"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestFaultsOfAGPUAreCountedAndSaid(t *testing.T) {
	g := newFakeGPU(rigTotal)
	r := newRigOn(t, g.open, onGPU)
	for _, f := range []device.Fault{
		{Kind: device.FaultXID, Code: 94, Text: "XID 94 (contained memory error)"}, {Kind: device.FaultXID, Code: 31, Text: "XID 31 (memory page fault)", Job: true},
		{Kind: device.FaultCorrected, Text: "corrected ECC error"}, {},
	} {
		g.faults <- f
	}
	r.until("faults are counted, and that they are watched no more", func() bool {
		d := r.state().Devices[0]
		return d.Faults[device.FaultXID] == 2 && d.Faults[device.FaultCorrected] == 1 && slices.Contains(d.Notes, "device: gpu: faults are watched no more")
	})
	problems := strings.Join(r.state().Problems, "\n")
	if !strings.Contains(problems, "device host0 fault: XID 94 (contained memory error) at ") || strings.Contains(problems, "XID 31") || strings.Contains(problems, "corrected ECC") {
		t.Errorf("problems %q, want the hardware's fault and neither the job's nor what was corrected", problems)
	}
	for _, want := range []string{`level=ERROR msg="the GPU reports a fault" device=host0 fault="XID 94`, `level=WARN msg="the GPU reports a fault" device=host0 fault="XID 31`, `level=INFO msg="the GPU reports a fault" device=host0 fault="corrected ECC error"`} {
		if !strings.Contains(r.logs.String(), want) {
			t.Errorf("the log has no line %s", want)
		}
	}
	for _, want := range []string{`lull_device_faults_total{code="94",device="host0",kind="xid"} 1`, `lull_device_faults_total{code="0",device="host0",kind="ecc_corrected"} 1`} {
		if text := r.metrics(); !strings.Contains(text, want) {
			t.Errorf("no series %s", want)
		}
	}
}

func TestMissingGPUIsNoReasonToServeNobody(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	r.open = func(string) (gpu, error) { return nil, errors.New("device: gpu 0: no driver") }
	onGPU(&r.file)
	r.start()
	r.mustAllBeWhole(r.burst(3, 50, 10))
	const want = "devices host0: device: gpu 0: no driver; requests are relayed and nothing is lent on it until a restart"
	if s := r.state(); s.Lending || len(s.Devices) != 1 || !s.Devices[0].LeftOut || "devices host0: "+s.Devices[0].Why != want || !slices.Contains(s.Problems, want) {
		t.Errorf("lending %v, devices %+v, problems %q; want %s", s.Lending, s.Devices, s.Problems, want)
	}
	resp, err := r.client.Get(r.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("readyz %d, want 200: requests are served", resp.StatusCode)
	}
	if !strings.Contains(r.logs.String(), `level=ERROR msg="a GPU of lull.yaml is not as it says" device=host0 err="device: gpu 0: no driver; requests`) {
		t.Error("the log does not say it")
	}
	if _, err := os.Stat(r.socket); err == nil {
		t.Error("listens for trainers that it has nothing for")
	}
}
