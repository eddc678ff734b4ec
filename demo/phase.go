package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// phaseRun is all that was seen of one phase.
type phaseRun struct {
	Phase Phase
	// Start and End are the window of the load: [first due time, window). Training
	// is counted in it; answers that end after it count too.
	Start, End time.Time
	Results    []Result
	Device     yardstick
	Verdict    verdict
	Events     []sidecarEvent // since Start
	Ceilings   ceilings
	Train      *trainLog // nil without a training job
	Report     trainerReport
	Cgroup     cgroupCheck
}

// runPhase starts the processes, replays the load, audits, and stops
// everything before it returns.
func (r *runner) runPhase(ctx context.Context, p Phase, slo Objectives) (*phaseRun, error) {
	var (
		audit   *auditor
		wg      sync.WaitGroup
		run     = &phaseRun{Phase: p, Device: yardstick{Capacity: r.capacity, Floor: r.floor}}
		auditor context.Context
	)
	auditor, stopAudit := context.WithCancel(ctx)
	defer stopAudit()
	g, err := r.startRig(ctx, p, slo, r.capacity, func(g *rig) error {
		pid := 0
		if g.trainer != nil {
			pid = g.trainer.pid()
		}
		var err error
		if audit, err = newAuditor(g.engine.pids, pid); err != nil {
			return err
		}
		wg.Go(func() { audit.run(auditor) }) // ends with stopAudit
		return nil
	})
	if audit != nil {
		defer audit.close()
		defer func() { stopAudit(); wg.Wait() }()
	}
	if err != nil {
		return nil, err
	}
	defer g.close()
	rec := newRecorder(p.Name, r.epoch)
	if err := r.load(ctx, g, run, rec, audit, slo); err != nil {
		return nil, err
	}
	stopAudit()
	wg.Wait()
	if err := r.collect(ctx, g, run, rec, audit); err != nil {
		return nil, err
	}
	return run, rec.appendTo(filepath.Join(r.opts.Out, "events.jsonl"))
}

// load replays the slice and shows the live table.
func (r *runner) load(ctx context.Context, g *rig, run *phaseRun, rec *recorder, audit *auditor, slo Objectives) error {
	c := r.newClient(g.proxy)
	defer c.close()
	c.observe = rec.observe
	warm := r.newClient(g.proxy)
	defer warm.close()
	replay(ctx, warm, r.warm, time.Now(), &progress{})
	var p progress
	check := newCgroupCheck(g.engine.pids[0])
	run.Start = time.Now()
	run.End = run.Start.Add(r.opts.Window)
	live := newLive(r, run, g, rec, audit, &p, slo, &check)
	shown, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { live.show(shown) }) // ends with stop
	run.Results = replay(ctx, c, r.reqs, run.Start, &p)
	sleep(ctx, time.Until(run.End)) // the last arrival may be early
	stop()
	wg.Wait() // from here on the logs are read by this goroutine only
	run.Cgroup = check
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := g.alive(); err != nil {
		return err
	}
	if g.log == nil {
		return nil
	}
	// One more step: then the step that the window's end cuts is known.
	return g.awaitLog(ctx, drainLimit, "no optimizer step after the load", func() bool {
		return len(g.log.between(run.End, time.Now())) > 0
	})
}

// collect reads the books of sidecar and trainer and judges the samples.
func (r *runner) collect(ctx context.Context, g *rig, run *phaseRun, rec *recorder, audit *auditor) error {
	if run.Phase.Trains {
		body, err := g.state(ctx)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.opts.Out, "logs", run.Phase.Name, "state.json"), body, 0o644); err != nil {
			return err
		}
		if run.Report, err = parseState(body); err != nil {
			return err
		}
		if err := g.log.refresh(); err != nil {
			return err
		}
		run.Train = g.log
		if run.Train.ready == nil {
			return fmt.Errorf("train log %s: got no ready line, want one before the first step", g.log.tail.path)
		}
		run.Device.Floor = bytesOf(run.Train.ready.Floor)
		run.Device.Risen = run.Train.floors()
		run.Device.TrainerBaseline = bytesOf(run.Train.ready.Baseline)
	}
	run.Device.EngineBaseline = g.engine.baseline
	g.close() // the sidecar writes the end of its events when it stops
	all, err := readSidecarLog(g.events)
	if err != nil {
		return err
	}
	run.Ceilings = buildCeilings(all)
	for _, e := range all {
		if !e.at().Before(run.Start) {
			run.Events = append(run.Events, e)
		}
	}
	raw, lost := audit.taken()
	run.Verdict = judge(raw, lost, run.Device, run.Ceilings)
	rec.addSidecar(all)
	rec.addSamples(run.Verdict.Samples)
	return nil
}
