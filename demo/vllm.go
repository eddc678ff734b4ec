package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

const (
	// vllmStart is how long vLLM may take to serve, vllmStop how long it may take
	// to end.
	vllmStart = 4 * time.Minute
	vllmStop  = 20 * time.Second
	// vllmSeqs is how many requests the server runs at once.
	vllmSeqs = 16
	// residentSlack is added to the measured resident bytes: a Python server's heap
	// grows a little for as long as it runs.
	residentSlack = 32 * size.MiB
)

// openVLLM starts the real vLLM that serves all phases: it takes most of a
// minute to come up. Its plugin's files lie in memory.
func (r *runner) openVLLM(ctx context.Context) (err error) {
	logs := filepath.Join(r.opts.Out, "logs", "vllm")
	pages := filepath.Join(r.tmp, "vllm")
	port, err := freePort()
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, "demo: vLLM with lull-vllm starts; that takes most of a minute")
	p, err := startProc(procSpec{
		Name: "vllm", Path: r.opts.Python, Args: r.vllmArgs(port), Cores: r.place.Server, LogDir: logs, Group: true,
		Env: []string{
			"LULL_VLLM_DIR=" + pages, "LULL_VLLM_NAME=main",
			"OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
			// Buffers go back when they are freed, and oneDNN does not keep a kernel for
			// every batch shape that it met: without these what the server holds besides KV
			// creeps up for minutes.
			"MALLOC_MMAP_THRESHOLD_=65536", "MALLOC_TRIM_THRESHOLD_=65536", "MALLOC_ARENA_MAX=2",
			"ONEDNN_PRIMITIVE_CACHE_CAPACITY=16",
		},
	})
	if err != nil {
		return err
	}
	r.vllm = &llmServer{
		proc: p, kept: true, url: fmt.Sprintf("http://127.0.0.1:%d", port),
		kind: engine.KindLullVLLM, page: filepath.Join(pages, "main.page"),
	}
	up := poll(ctx, vllmStart, 200*time.Millisecond, func() bool { return p.ended() != nil || answers(ctx, r.vllm.url+"/health") })
	switch {
	case p.ended() != nil:
		return p.ended()
	case !up:
		return fmt.Errorf("vllm: does not answer /health in %v: %w; %s", vllmStart, ctx.Err(), p.logTail())
	}
	return r.measureVLLM(ctx)
}

func (r *runner) vllmArgs(port int) []string {
	s := r.sizing
	return []string{
		filepath.Join(r.opts.Root, "scripts", "tiny_vllm.py"), "--work", filepath.Join(r.tmp, "model"),
		"--port", strconv.Itoa(port), "--name", servedModel, "--dtype", "float32",
		"--layers", strconv.Itoa(s.Layers), "--hidden", strconv.Itoa(s.Hidden), "--heads", strconv.Itoa(s.Heads), "--kv-heads", strconv.Itoa(s.Heads), "--",
		"--kv-cache-memory-bytes", strconv.FormatInt(int64(s.Elastic), 10), "--block-size", strconv.Itoa(s.BlockTokens),
		"--max-model-len", strconv.Itoa(s.MaxModelLen), "--max-num-batched-tokens", strconv.Itoa(s.BatchedTokens),
		"--max-num-seqs", strconv.Itoa(vllmSeqs), "--enforce-eager", "--no-enable-prefix-caching", "--seed", strconv.FormatUint(r.opts.Seed, 10),
	}
}

// heaviest is a burst of as many of the longest prompts as the server runs at
// once: after it the server holds what it will ever hold besides KV.
func (r *runner) heaviest() []Request {
	var burst []Request
	for i := range vllmSeqs {
		burst = append(burst, Request{ID: fmt.Sprintf("heavy%02d", i), Prompt: strings.Repeat("x", r.sizing.MaxPrompt), OutputTokens: 8})
	}
	return burst
}

// measureVLLM sends the heaviest burst and the warm-up once and then reads what
// the server holds besides KV: its resident bytes size the device.
func (r *runner) measureVLLM(ctx context.Context) (err error) {
	c := r.newClient(r.vllm.url)
	defer c.close()
	for _, res := range replay(ctx, c, append(r.heaviest(), r.warm...), time.Now(), &progress{}) {
		if res.Err != nil {
			return fmt.Errorf("vllm: warm-up: %w", res.Err)
		}
	}
	cfg := engine.DefaultConfig()
	cfg.Name, cfg.Kind, cfg.URL, cfg.Page = "main", r.vllm.kind, r.vllm.url, r.vllm.page
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close(e)) }()
	s, err := e.Observe(ctx)
	if err != nil {
		return fmt.Errorf("vllm: %w", err)
	}
	if can := e.Capabilities(); !can.Bound {
		return fmt.Errorf("vllm: the plugin lull-vllm sets no bound on it; %s", r.vllm.proc.logTail())
	}
	if r.vllm.pids, err = device.Descendants(s.PID); err != nil {
		return fmt.Errorf("vllm: %w", err)
	}
	all, err := device.ReadTree(s.PID)
	if err != nil {
		return fmt.Errorf("vllm: %w", err)
	}
	r.vllm.baseline = s.Baseline
	r.sizing.Elastic = s.Pool // whole blocks
	r.sizing.Resident = (all - s.Baseline - s.Held + residentSlack).CeilTo(size.MiB)
	if r.sizing.Resident <= 0 {
		return fmt.Errorf("vllm: %v in its processes, baseline %v, KV %v: want more than the last two", all, s.Baseline, s.Held)
	}
	return nil
}

// closeVLLM ends the server that serves all phases.
func (r *runner) closeVLLM() {
	if r.vllm != nil {
		r.vllm.proc.stop(vllmStop)
	}
}

// answers says whether a GET is answered with 200.
func answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// freePort is a port of the loopback that is free now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
