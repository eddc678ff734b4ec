package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lull-project/lull/size"
)

// auditPeriod is the time between two samples: 333 a second where the machine
// lets the auditor run, and at least 200.
const auditPeriod = 3 * time.Millisecond

// rawSample is one reading of the device: engine, trainer, engine again. Bytes
// are as the kernel gives them, baselines included.
type rawSample struct {
	// From and To bracket the trainer's read; At is the whole sample's start.
	At, From, To    time.Time
	Engine, Engine2 size.Bytes
	Trainer         size.Bytes
}

// agrees says that the sample is one moment: the engine's bytes did not move
// while the trainer's were read.
func (s rawSample) agrees() bool { return s.Engine == s.Engine2 }

// auditor reads the device on its own; it knows no sidecar, no budget and no
// ledger. verdict.go judges what it has read.
type auditor struct {
	engine  *memReader
	trainer *memReader // nil without a training job

	mu      sync.Mutex
	samples []rawSample
	lost    int // reads that failed (a process that ended)
}

// newAuditor opens the server's processes and the trainer's; trainerPID 0 means
// that none runs.
func newAuditor(enginePIDs []int, trainerPID int) (*auditor, error) {
	a := &auditor{}
	var err error
	if a.engine, err = openMem(enginePIDs...); err != nil {
		return nil, err
	}
	if trainerPID != 0 {
		if a.trainer, err = openMem(trainerPID); err != nil {
			a.engine.close()
			return nil, err
		}
	}
	return a, nil
}

// run samples until ctx ends. Its caller waits for it before it calls close.
func (a *auditor) run(ctx context.Context) {
	t := time.NewTicker(auditPeriod)
	defer t.Stop()
	for {
		a.sample()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *auditor) sample() {
	s := rawSample{At: time.Now()}
	var err error
	if s.Engine, err = a.engine.read(); err != nil {
		a.miss()
		return
	}
	s.From = time.Now()
	if a.trainer != nil {
		if s.Trainer, err = a.trainer.read(); err != nil {
			a.miss()
			return
		}
	}
	s.To = time.Now()
	if s.Engine2, err = a.engine.read(); err != nil {
		a.miss()
		return
	}
	a.mu.Lock()
	a.samples = append(a.samples, s)
	a.mu.Unlock()
}

func (a *auditor) miss() {
	a.mu.Lock()
	a.lost++
	a.mu.Unlock()
}

// last is the newest sample, for the live table.
func (a *auditor) last() (rawSample, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.samples) == 0 {
		return rawSample{}, false
	}
	return a.samples[len(a.samples)-1], true
}

// taken is a copy of all samples and the number of failed reads.
func (a *auditor) taken() ([]rawSample, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.samples), a.lost
}

func (a *auditor) close() {
	a.engine.close()
	a.trainer.close()
}
