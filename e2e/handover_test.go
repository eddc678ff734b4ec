package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestABurstMakesRealTrainingGiveMemoryBack is the main job in small: training
// holds what an idle engine does not need, a burst needs it, and gets it.
func TestABurstMakesRealTrainingGiveMemoryBack(t *testing.T) {
	r := startRig(t, "demo/train.py", "--batch", "64")
	before := r.state(t).Ledger
	if wrong := r.burst(8); len(wrong) > 0 {
		t.Errorf("got %d answers that were not whole: %q", len(wrong), wrong)
	}
	shrinks := r.shrinks(t)
	if len(shrinks) == 0 {
		t.Fatalf("got no shrink that freed memory; the ledger was %+v", before)
	}
	for _, s := range shrinks {
		t.Logf("freed %d MiB by %s in %d us (%s)", s.Freed/mib, s.How, s.TookUS, s.Result)
	}
	st := r.waitFor(t, "training grows again after the burst", time.Minute, func(st state) bool {
		return st.Ledger.Trainers[0].Budget >= before.Trainers[0].Budget*3/4 && st.Live == 0
	})
	if d := st.Ledger.Devices[0]; d.Breaches != 0 || d.Over != 0 {
		t.Errorf("got %+v, want the ledger never exceeded", d)
	}
	samples := trained(st)
	r.waitFor(t, "training goes on", 30*time.Second, func(st state) bool { return trained(st) > samples })
}

// TestNoRequestFailsWhenTheTrainerIsKilledMidOrder kills a job that has two
// DataLoader workers, which inherit its socket, while it owes an answer: it is
// stopped before the burst, so that it cannot answer.
func TestNoRequestFailsWhenTheTrainerIsKilledMidOrder(t *testing.T) {
	r := startRig(t, "e2e/testdata/train_workers.py")
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(r.trainer.cmd.Process.Pid, s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	wrong := make(chan []string, 1)
	go func() { wrong <- r.burst(8) }() // ends with the burst
	r.waitFor(t, "an order is owed", 30*time.Second, func(st state) bool { return len(st.Ledger.Owed) > 0 && st.Ledger.Owed[0].Shrink })
	signal(syscall.SIGKILL)
	killed := time.Now()
	r.waitFor(t, "the death is noticed and the bytes are free", 30*time.Second, func(st state) bool {
		return len(st.Ledger.Devices) == 1 && st.Ledger.Devices[0].TrainerCharged == 0 && st.Ledger.Devices[0].Floor == 0
	})
	t.Logf("noticed and confirmed free within %v", time.Since(killed).Round(time.Millisecond))
	if w := <-wrong; len(w) > 0 {
		t.Errorf("got %d answers that were not whole: %q", len(w), w)
	}
	r.waitFor(t, "the freed bytes go to the engine", time.Minute, func(st state) bool { return st.Ledger.Engines[0].Bound >= 224*mib })
	if w := r.burst(8); len(w) > 0 {
		t.Errorf("after the death: got %d answers that were not whole: %q", len(w), w)
	}
}

// TestTrainingMakesRoomForAnEngineThatDied kills the engine and starts it again.
func TestTrainingMakesRoomForAnEngineThatDied(t *testing.T) {
	r := startRig(t, "demo/train.py", "--batch", "64")
	before := r.state(t).Ledger.Trainers[0].Budget
	if err := syscall.Kill(r.engine.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st := r.waitFor(t, "the engine is down and its start-up demand is free", time.Minute, func(st state) bool {
		return len(st.Ledger.Engines) == 1 && st.Ledger.Engines[0].Down && st.Ledger.roomForStart()
	})
	if got := st.Ledger.Trainers[0].Budget; got >= before {
		t.Errorf("the budget went from %d to %d, want less: the engine starts with its whole pool", before, got)
	}
	down, err := fetch("POST", r.url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`)
	if err != nil || down.status != 502 {
		t.Errorf("while the engine is down: got %d %s %v, want 502", down.status, down.body, err)
	}
	<-r.engine.ended
	r.startEngine(t)
	r.waitFor(t, "the engine is up again", time.Minute, func(st state) bool { return !st.Ledger.Engines[0].Down })
	if wrong := r.burst(2); len(wrong) > 0 {
		t.Errorf("after the restart: %q", wrong)
	}
	st = r.waitFor(t, "training grows again", time.Minute, func(st state) bool { return st.Ledger.Trainers[0].Budget >= before*3/4 })
	if d := st.Ledger.Devices[0]; d.Breaches != 0 {
		t.Errorf("got %+v, want the ledger never exceeded", d)
	}
}
