package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/size"
)

// runner is one run of the demo.
type runner struct {
	opts     Options
	sizing   Sizing
	out      io.Writer
	cores    []int // that the demo may use
	place    Placement
	reqs     []Request
	warm     []Request // sent before each phase, not counted
	epoch    time.Time // t_us 0 of events.jsonl
	capacity size.Bytes
	floor    size.Bytes
	curve    []trainLine
	busy     string     // a warning about other work on the machine
	tmp      string     // sockets and state of the run, in memory where there is /dev/shm
	vllm     *llmServer // the real server that serves all phases, nil with the emulator
}

// newClient is a client of the run's server behind a base URL.
func (r *runner) newClient(url string) *client {
	return newClient(url, servedModel, r.sizing.MaxTokens, r.sizing.EndToken)
}

// Run runs the demo and writes report.html, events.jsonl and summary.json into
// opts.Out. The table goes to out while it runs. A bar that is missed is not an
// error; it is in the Summary, by how much. A phase that fails is left out of the
// report, which says why; the error then wraps ErrNotMeasured and comes with the
// Summary of the rest.
func Run(ctx context.Context, out io.Writer, opts Options) (Summary, error) {
	if err := opts.Validate(); err != nil {
		return Summary{}, err
	}
	r := &runner{opts: opts, sizing: SizingFor(opts.Engine), out: out, epoch: time.Now()}
	if r.opts.Window == 0 {
		r.opts.Window = r.sizing.Window
	}
	if err := r.prepare(); err != nil {
		return Summary{}, err
	}
	defer os.RemoveAll(r.tmp)
	restore, err := pinProcess(r.place.Rest)
	if err != nil {
		return Summary{}, fmt.Errorf("demo: %w", err)
	}
	defer restore()
	r.busy = measureOthers(ctx, r.cores)
	if r.busy != "" {
		fmt.Fprintln(out, "demo: warning:", r.busy)
	}
	fmt.Fprintf(out, "demo: %d requests in %v; %s\n", len(r.reqs), r.opts.Window, r.place)
	if err := r.measureTrainer(ctx); err != nil {
		return Summary{}, err
	}
	if opts.Engine == EngineVLLM {
		defer r.closeVLLM()
		if err := r.openVLLM(ctx); err != nil {
			return Summary{}, fmt.Errorf("demo: %w", err)
		}
	}
	r.capacity = r.sizing.Capacity(r.floor)
	fmt.Fprintf(out, "demo: device %v = resident %v + elastic %v + floor %v + headroom %v\n",
		r.capacity, r.sizing.Resident, r.sizing.Elastic, r.floor, r.sizing.Headroom)
	slo, err := r.measureObjectives(ctx)
	if err != nil {
		return Summary{}, err
	}
	runs, missing, err := r.runPhases(ctx, func(ctx context.Context, p Phase) (*phaseRun, error) { return r.runPhase(ctx, p, slo) })
	if err != nil {
		return Summary{}, err
	}
	summary := r.summarise(runs, slo)
	summary.NotMeasured = missing
	if err := summary.write(filepath.Join(opts.Out, "summary.json")); err != nil {
		return Summary{}, err
	}
	printTable(out, summary)
	report := filepath.Join(opts.Out, "report.html")
	if err := r.writeReport(report, summary, runs, slo); err != nil {
		return Summary{}, err
	}
	fmt.Fprintf(out, "demo: %.0f s in all; %s\n", time.Since(r.epoch).Seconds(), report)
	return summary, summary.complete(opts.Out)
}

// prepare reads the trace and empties what the run writes.
func (r *runner) prepare() error {
	cores, err := allowedCores()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	r.cores = cores
	r.place = placement(r.opts.Study, cores, cmp.Or(r.opts.TrainerNice, ownNice()))
	rows, err := traces.AzureConversation()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if r.warm, err = warmWorkload(rows, r.sizing, r.opts.Seed); err != nil {
		return err
	}
	if r.reqs, err = Workload(rows, r.sizing, r.opts.Window, r.opts.Requests, r.opts.Seed); err != nil {
		return err
	}
	if r.opts.Exe == "" {
		if r.opts.Exe, err = os.Executable(); err != nil {
			return fmt.Errorf("demo: find the lull binary: %w", err)
		}
	}
	if err := os.MkdirAll(r.opts.Out, 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	for _, old := range []string{"events.jsonl", "summary.json", "report.html", "logs"} {
		if err := os.RemoveAll(filepath.Join(r.opts.Out, old)); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	if r.tmp, err = os.MkdirTemp("/dev/shm", "lull-demo-"); err != nil {
		r.tmp, err = os.MkdirTemp("", "lull-demo-")
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// measureTrainer runs the job alone for its floor, which sizes the device, and
// for its speed under several budgets.
func (r *runner) measureTrainer(ctx context.Context) error {
	fmt.Fprintln(r.out, "demo: the training job alone: its floor, and its speed against memory")
	logs := filepath.Join(r.opts.Out, "logs", "curve")
	p, log, err := r.train(logs, filepath.Join(logs, "train.jsonl"), []string{"LULL_SOCKET="}, "--curve")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	g := &rig{trainer: p, log: log}
	defer g.close()
	if err := g.awaitLog(ctx, startLimit, "not finished", func() bool { return p.ended() != nil }); err != nil {
		return fmt.Errorf("demo: measure the training job: %w", err)
	}
	if p.err != nil {
		return fmt.Errorf("demo: measure the training job: %w", p.ended())
	}
	if log.ready == nil || log.ready.Floor <= 0 {
		return fmt.Errorf("demo: measure the training job: no floor in %s, want a ready line with floor_bytes; the device cannot be sized", log.tail.path)
	}
	r.curve = log.curve
	r.floor = bytesOf(log.ready.Floor).CeilTo(size.MiB)
	return nil
}

// measureObjectives measures the idle server once: the emulator alone, whose
// timing training cannot disturb; a real one beside training at a small fixed
// budget, since it shares caches and memory bandwidth with it in any case.
func (r *runner) measureObjectives(ctx context.Context) (Objectives, error) {
	p := Phases()[0]
	if r.opts.Engine == EngineVLLM {
		p = Phase{Mode: "static", StaticKVFrac: objectiveKVFrac, Trains: true}
	}
	p.Name = "objectives"
	g, err := r.startRig(ctx, p, Objectives{}, r.capacity, nil)
	if err != nil {
		return Objectives{}, fmt.Errorf("demo: measure objectives: %w", err)
	}
	defer g.close()
	c := r.newClient(g.proxy)
	defer c.close()
	slo, err := measureObjectives(ctx, c, r.reqs)
	if err != nil {
		return Objectives{}, err
	}
	fmt.Fprintf(r.out, "demo: objectives, %d × the idle means: TTFT %.1f ms, TBT %.1f ms\n", objectiveFactor, ms(slo.TTFT), ms(slo.TBT))
	return slo, nil
}

func (r *runner) summarise(runs []*phaseRun, slo Objectives) Summary {
	s := Summary{
		Engine: r.opts.Engine, Study: r.opts.Study, DeviceBytes: int64(r.capacity), ElasticBytes: int64(r.sizing.Elastic), FloorBytes: int64(r.floor),
		Handover: summariseHandovers(runs), Audit: summariseAudit(runs),
		Seed: r.opts.Seed, Trace: traces.AzureConversationSource,
		Machine: machine(), Busy: r.busy, Placement: r.place.String(), Command: command(os.Args),
	}
	for _, run := range runs {
		s.Phases = append(s.Phases, summarisePhase(run, slo))
	}
	compareStreams(s.Phases, runs)
	diff, steps := sameStepLoss(runs)
	s.SameLossDiff, s.SameLossSteps = diff, steps
	s.TokenIdentity = compareAnswers(runs)
	s.Bars = bars(s)
	return s
}
