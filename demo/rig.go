package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lull-project/lull/size"
)

// rig is the processes of one phase, all fresh.
type rig struct {
	engine           *llmServer
	sidecar, trainer *proc
	proxy, admin     string // base URLs
	events           string // the sidecar's events file
	log              *trainLog
	tmp              string // the socket: a short path, sockets have a length limit
}

type sidecarReady struct {
	Listening string `json:"listening"`
	Admin     string `json:"admin"`
	Socket    string `json:"socket"`
}

// startRig starts engine, sidecar and, where the phase trains, the trainer, in
// this order, and waits until the trainer has finished its first optimizer
// step. On an error everything that was started is stopped.
func (r *runner) startRig(ctx context.Context, p Phase, slo Objectives, capacity size.Bytes, started func(*rig) error) (_ *rig, err error) {
	logs := filepath.Join(r.opts.Out, "logs", p.Name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of logs: %w", err)
	}
	g := &rig{events: filepath.Join(logs, "sidecar-events.jsonl")}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if g.tmp, err = os.MkdirTemp(r.tmp, "phase-"); err != nil {
		return nil, fmt.Errorf("make a folder for the socket: %w", err)
	}
	if g.engine, err = r.startEngine(ctx, logs, !p.Trains); err != nil {
		return nil, err
	}
	if err := r.startSidecar(ctx, g, p, slo, capacity, logs); err != nil {
		return nil, err
	}
	if p.Trains {
		if err := r.startTrainer(g, p, logs); err != nil {
			return nil, err
		}
	}
	if started != nil { // the auditor watches the trainer's start too
		if err := started(g); err != nil {
			return nil, err
		}
	}
	if p.Trains {
		if err := g.awaitFirstStep(ctx); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (r *runner) startSidecar(ctx context.Context, g *rig, p Phase, slo Objectives, capacity size.Bytes, logs string) error {
	text := sidecarConfig{
		StateDir: filepath.Join(r.tmp, "state"), Socket: filepath.Join(g.tmp, "lull.sock"), Events: g.events,
		Capacity: capacity, Headroom: r.sizing.Headroom,
		EngineKind: g.engine.kind, EngineURL: g.engine.url, EnginePID: g.engine.pid, EnginePage: g.engine.page,
		Mode: p.Mode, StaticKVFrac: p.StaticKVFrac, SLO: slo, Yield: p.Yield, Pace: p.Pace, Quantum: r.sizing.Quantum,
	}.yaml()
	file := filepath.Join(logs, "lull.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the sidecar's config: %w", err)
	}
	var err error
	g.sidecar, err = startProc(procSpec{
		Name: "sidecar", Path: r.opts.Exe, Args: []string{"serve", "--config", file},
		Cores: r.place.Rest, LogDir: logs, Ready: true,
	})
	if err != nil {
		return err
	}
	var ready sidecarReady
	if err := g.sidecar.awaitReady(ctx, startLimit, &ready); err != nil {
		return err
	}
	g.proxy, g.admin = baseURL(ready.Listening), baseURL(ready.Admin)
	return nil
}

// startTrainer starts the training job of a phase.
func (r *runner) startTrainer(g *rig, p Phase, logs string) error {
	file := filepath.Join(logs, "train.jsonl")
	env := []string{
		"LULL_SOCKET=" + filepath.Join(g.tmp, "lull.sock"), "LULL_DEVICE=" + deviceID,
		// Until the sidecar has granted anything the job lives on its own budget.
		"LULL_BUDGET=" + startBudget,
	}
	if p.Release != "" {
		env = append(env, "LULL_RELEASE="+p.Release)
	}
	var err error
	g.trainer, g.log, err = r.train(logs, file, env, "--batch", fmt.Sprint(r.sizing.Batch))
	return err
}

// train starts demo/train.py under lull.run, on its own core and niced.
func (r *runner) train(logs, file string, env []string, args ...string) (*proc, *trainLog, error) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, nil, fmt.Errorf("start trainer: %w", err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return nil, nil, fmt.Errorf("start trainer: %w", err)
	}
	path := filepath.Join(r.opts.Root, "trainer", "python")
	if old := os.Getenv("PYTHONPATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	p, err := startProc(procSpec{
		Name: "trainer", Path: r.opts.Python,
		Args:  append([]string{"-m", "lull.run", r.opts.TrainScript(), "--seed", fmt.Sprint(r.opts.Seed), "--log", file}, args...),
		Env:   append([]string{"PYTHONPATH=" + path, "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1"}, env...),
		Cores: r.place.Trainer, Nice: r.place.TrainerNice, LogDir: logs,
	})
	if err != nil {
		return nil, nil, err
	}
	t, err := openTail(file)
	if err != nil {
		p.stop(stopGrace)
		return nil, nil, err
	}
	return p, &trainLog{tail: t}, nil
}

// awaitFirstStep waits until the job has done one optimizer step, so that every
// phase is measured on a job that runs.
func (g *rig) awaitFirstStep(ctx context.Context) error {
	return g.awaitLog(ctx, startLimit, "no optimizer step", func() bool { return len(g.log.steps) > 0 })
}

// awaitLog polls the training log until enough answers true. A job that got hardly
// any CPU meanwhile is said to be starved.
func (g *rig) awaitLog(ctx context.Context, limit time.Duration, missing string, enough func() bool) error {
	from, counted := readCPUTime(g.trainer.pid())
	deadline := time.Now().Add(limit)
	for {
		ended := g.trainer.ended() // read before the log: a job that ends has logged all
		if err := g.log.refresh(); err != nil {
			return err
		}
		switch {
		case enough():
			return nil
		case ended != nil:
			return ended
		case time.Now().After(deadline):
			to, ok := readCPUTime(g.trainer.pid())
			if !ok || !counted {
				from = to // nobody knows
			}
			return g.trainer.late(missing, limit, from, to)
		case !sleep(ctx, 50*time.Millisecond):
			return fmt.Errorf("trainer: waiting for it: %w", ctx.Err())
		}
	}
}

// alive is an error if one of the processes has ended.
func (g *rig) alive() error {
	for _, p := range []*proc{g.engine.proc, g.sidecar, g.trainer} {
		if p != nil {
			if err := p.ended(); err != nil {
				return err
			}
		}
	}
	return nil
}

// close ends the processes, the trainer first: it gives its memory back while
// somebody listens.
func (g *rig) close() {
	g.trainer.stop(stopGrace)
	g.sidecar.stop(stopGrace)
	g.engine.stop()
	if g.log != nil {
		g.log.tail.close()
	}
	if g.tmp != "" {
		_ = os.RemoveAll(g.tmp) // a leftover in the temporary folder harms nobody
	}
}

// state fetches the sidecar's /api/v1/state.
func (g *rig) state(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+"/api/v1/state", nil)
	if err != nil {
		return nil, fmt.Errorf("read sidecar state: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read sidecar state: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read sidecar state: status %d, want 200: %w", resp.StatusCode, err)
	}
	return body, nil
}

// trainerReport is the trainer's own last report, as the sidecar passes it on.
type trainerReport struct {
	MicrobatchTook        time.Duration `json:"microbatch_ns"`
	Recomputed            int           `json:"recomputed"`
	WorkLostSampleSeconds float64       `json:"work_lost_sample_s"`
}

// parseState takes the first trainer's report out of /api/v1/state.
func parseState(body []byte) (trainerReport, error) {
	var state struct {
		Trainers []struct {
			Report trainerReport `json:"report"`
		} `json:"trainers"`
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return trainerReport{}, fmt.Errorf("sidecar state %.80q: %w, want a JSON object", body, err)
	}
	if len(state.Trainers) == 0 {
		return trainerReport{}, fmt.Errorf("sidecar state: got no trainers, want one")
	}
	return state.Trainers[0].Report, nil
}

// baseURL makes a base URL of host:port or of a URL.
func baseURL(listening string) string {
	if strings.Contains(listening, "://") {
		return strings.TrimSuffix(listening, "/")
	}
	return "http://" + listening
}
