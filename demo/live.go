package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lull-project/lull/size"
)

// live prints one line a second while a phase runs, and samples the cgroup.
type live struct {
	out      io.Writer
	color    bool
	run      *phaseRun
	rig      *rig
	rec      *recorder
	audit    *auditor
	progress *progress
	slo      Objectives
	capacity size.Bytes
	check    *cgroupCheck
	orders   *sidecarLog // nil when the events file is not there
}

func newLive(r *runner, run *phaseRun, g *rig, rec *recorder, audit *auditor, p *progress, slo Objectives, check *cgroupCheck) *live {
	l := &live{
		out: r.out, color: r.opts.Color, run: run, rig: g, rec: rec, audit: audit,
		progress: p, slo: slo, capacity: r.capacity, check: check,
	}
	if t, err := openTail(g.events); err == nil {
		l.orders = &sidecarLog{tail: t}
	}
	return l
}

const liveHeader = "  s  sent done fail │ TTFT ms p50   max │  engine  trainer  device (MiB) │ shrinks  step   loss"

// show prints until ctx ends.
func (l *live) show(ctx context.Context) {
	if l.orders != nil {
		defer l.orders.tail.close()
	}
	fmt.Fprintln(l.out, liveHeader)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case at := <-t.C:
			l.check.sample()
			fmt.Fprintln(l.out, l.row(at))
		case <-ctx.Done():
			return
		}
	}
}

// row is the table's line for one moment.
func (l *live) row(at time.Time) string {
	recent := l.rec.takeRecent()
	slices.Sort(recent)
	p50, worst := quantile(recent, 0.5), quantile(recent, 1)
	var engine, trainer size.Bytes
	if s, ok := l.audit.last(); ok {
		engine = max(0, s.Engine-l.rig.engine.baseline)
		trainer = max(0, s.Trainer-l.trainerBaseline())
	}
	late := fmt.Sprintf("%5.0f", ms(worst))
	if worst > l.slo.TTFT && l.color {
		late = "\x1b[31m" + late + "\x1b[0m"
	}
	return fmt.Sprintf("%3.0f  %4d %4d %4d │      %6.0f %s │  %6.0f   %6.0f  %6.0f of %.0f │ %s",
		at.Sub(l.run.Start).Seconds(), l.progress.sent.Load(), l.progress.done.Load(), l.progress.failed.Load(),
		ms(p50), late, inMiB(engine), inMiB(trainer), inMiB(engine+trainer), inMiB(l.capacity), l.training())
}

func (l *live) trainerBaseline() size.Bytes {
	if l.rig.log == nil || l.rig.log.ready == nil {
		return 0
	}
	return bytesOf(l.rig.log.ready.Baseline)
}

// training is the right part of a row.
func (l *live) training() string {
	if l.rig.log == nil {
		return "      –     –      –"
	}
	shrinks := 0
	if l.orders != nil && l.orders.refresh() == nil {
		for _, e := range l.orders.events {
			if e.Kind == "order" && e.Shrink {
				shrinks++
			}
		}
	}
	step, loss := 0, 0.0
	if err := l.rig.log.refresh(); err == nil && len(l.rig.log.steps) > 0 {
		last := l.rig.log.steps[len(l.rig.log.steps)-1]
		step, loss = last.Step, last.Loss
	}
	return fmt.Sprintf("%7d %5d %6.3f", shrinks, step, loss)
}

func inMiB(b size.Bytes) float64 { return float64(b) / float64(size.MiB) }
