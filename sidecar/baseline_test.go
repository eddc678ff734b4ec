package sidecar

import (
	"os"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

func TestLyingBaselineIsAtMostWhatTheKernelShowed(t *testing.T) {
	r := newRig(t, nil)
	self, err := device.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	r.hello("liar", "host0", 4711, 1<<62, 0, 0)
	r.until("the trainer is in the state", func() bool { return len(r.state().Trainers) == 1 })
	after, err := self.Read()
	if err != nil {
		t.Fatal(err)
	}
	got := r.state().Trainers[0]
	if b := size.Bytes(got.Baseline); b <= 0 || b > after+64*size.MiB {
		t.Errorf("baseline %v, want what the process had at hello, about %v", b, after)
	}
	if got.PID != int64(os.Getpid()) {
		t.Errorf("pid %d, want the kernel's %d and not the trainer's word", got.PID, os.Getpid())
	}
}

// Data that were read before the job began may be more than the device's part
// that is Lull's to share.
func TestBaselineAboveTheCapacityIsNotHeldMemory(t *testing.T) {
	r := newRig(t, func(f *config.File) { f.Devices[0].Capacity = 320 * size.MiB })
	data := mapped(400 * size.MiB)
	held := fakeHeld{region: data}
	held.resize(400*size.MiB, untilDone)
	defer func() { held.resize(0, untilDone) }()
	c := r.hello("reader", "host0", os.Getpid(), 1<<62, 64<<20, 0)
	c.wait(`"type":"budget"`)
	r.until("the data are no held memory, and the device is not over", func() bool {
		s := r.state()
		return len(s.Ledger.Trainers) == 1 && s.Ledger.Trainers[0].Held <= 100*size.MiB && s.Ledger.Devices[0].Over == 0
	})
	if b := size.Bytes(r.state().Trainers[0].Baseline); b < 400*size.MiB {
		t.Errorf("baseline %v, want the data in it", b)
	}
}
