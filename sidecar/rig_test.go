package sidecar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/admin"
	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/emulator"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

const fakeEngineEnv = "LULL_FAKE_ENGINE" // the emulator's flags as JSON

// TestMain is also the emulated engine and the fake trainer: both must be
// processes of their own, or the device's word about them would mean nothing.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(fakeTrainerEnv) != "":
		fakeTrainerMain()
	case os.Getenv(fakeEngineEnv) != "":
		cfg := emulator.DefaultConfig()
		if err := json.Unmarshal([]byte(os.Getenv(fakeEngineEnv)), &cfg); err != nil {
			panic(err)
		}
		if err := emulator.Run(context.Background(), cfg, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		admin.Quiet()
		goleak.VerifyTestMain(m)
	}
}

// rig is an emulated engine, a sidecar in front of it, and where to reach both.
type rig struct {
	t            *testing.T
	dir, socket  string
	engineConfig emulator.Config
	engine       *exec.Cmd
	engineURL    string
	file         config.File
	stop         func()
	base, admin  string
	client       *http.Client
	logs         *syncBuffer
	sidecar      *Sidecar
	tweak        func(*Sidecar) // before it runs
	open         func(which string) (gpu, error)
}

// rigCapacity leaves 640 MiB elastic beside 64 MiB of resident and the fake
// trainer's floor.
const (
	rigResident = 64 * size.MiB
	rigElastic  = 640 * size.MiB
	rigHeadroom = 64 * size.MiB
)

func newRig(t *testing.T, change func(*config.File)) *rig {
	t.Helper()
	return newRigOn(t, openGPU, change)
}

// newRigOn is one whose GPUs are opened by open.
func newRigOn(t *testing.T, open func(which string) (gpu, error), change func(*config.File)) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, dir: dir, socket: filepath.Join(dir, "lull.sock"), logs: &syncBuffer{}, open: open}
	r.engineConfig = emulator.DefaultConfig()
	r.engineConfig.Listen, r.engineConfig.Resident, r.engineConfig.TimeScale = "127.0.0.1:0", rigResident, 5
	r.startEngine()
	f := config.Default()
	f.Listen, f.Admin.Listen, f.StateDir = "127.0.0.1:0", "127.0.0.1:0", dir
	f.Trainers.Socket, f.Trainers.Heartbeat = r.socket, 2*time.Second
	f.Devices = []config.Device{{ID: "host0", Kind: "host", Capacity: rigResident + rigElastic + fakeFloor + 8*size.MiB + rigHeadroom, Headroom: rigHeadroom}}
	f.Engines = []config.Engine{{Name: "main", Kind: "emulator", URL: r.engineURL, Devices: []string{"host0"}, AllocDelay: 5 * time.Millisecond}}
	f.SLO.TTFT, f.SLO.TBT = 2*time.Second, time.Second
	f.Telemetry.Events = filepath.Join(dir, "events.jsonl")
	if change != nil {
		change(&f)
	}
	r.file = f
	r.client = &http.Client{Transport: &http.Transport{}}
	r.start()
	t.Cleanup(func() {
		r.stop()
		r.client.CloseIdleConnections()
		if t.Failed() {
			t.Log(r.logs.String())
		}
	})
	return r
}

// startEngine starts the emulator, on its old port if it had one.
func (r *rig) startEngine() {
	r.t.Helper()
	text, _ := json.Marshal(r.engineConfig)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fakeEngineEnv+"="+string(text), "GOGC=20") // its own heap is nobody's KV
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct {
		Listening string `json:"listening"`
	}
	if err != nil || json.Unmarshal(line, &ready) != nil {
		r.t.Fatalf("emulator's ready line: %q, %v", line, err)
	}
	r.engine, r.engineURL, r.engineConfig.Listen = cmd, "http://"+ready.Listening, ready.Listening
}

// start starts a sidecar by the rig's file and waits until it lends.
func (r *rig) start() {
	r.t.Helper()
	r.launch()
	r.until("the sidecar decides", func() bool { return r.state().Deciding })
}

// launch starts it and waits until it listens.
func (r *rig) launch() {
	r.t.Helper()
	s, err := newSidecar(r.file, slog.New(slog.NewTextHandler(r.logs, nil)), r.open)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.tweak != nil {
		r.tweak(s)
	}
	r.sidecar = s
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, writer); _ = writer.Close() }()
	var ready struct{ Listening, Admin string }
	if err := json.NewDecoder(reader).Decode(&ready); err != nil {
		r.t.Fatalf("ready line: %v; run: %v", err, <-ended)
	}
	r.base, r.admin = "http://"+ready.Listening, "http://"+ready.Admin
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			r.client.CloseIdleConnections()
			if err := <-ended; err != nil {
				r.t.Errorf("run: %v", err)
			}
		})
	}
}

// until waits for what the world will show; it fails after a minute.
func (r *rig) until(what string, seen func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !seen(); time.Sleep(2 * time.Millisecond) { // the world has no event to wait for
		if time.Now().After(deadline) {
			var all json.RawMessage
			r.getJSON("/api/v1/state", &all)
			r.t.Fatalf("not seen in a minute: %s\nstate %s", what, all)
		}
	}
}

// rigState is what the tests read of /api/v1/state.
type rigState struct {
	State
	Ledger struct {
		Devices []struct {
			Capacity size.Bytes `json:"capacity_bytes"`
			Over     size.Bytes `json:"over_bytes"`
			Free     size.Bytes `json:"free_bytes"`
			Budget   size.Bytes `json:"budget_bytes"`
		} `json:"devices"`
		Engines []struct {
			ID      string                `json:"id"`
			Live    int                   `json:"live"`
			Down    bool                  `json:"down"`
			Bound   size.Bytes            `json:"kv_bound_bytes"`
			Held    size.Bytes            `json:"kv_held_bytes"`
			Reserve handover.ReserveState `json:"reserve"`
		} `json:"engines"`
		Queue    []handover.QueueState `json:"queue"`
		Trainers []struct {
			ID     string     `json:"id"`
			Floor  size.Bytes `json:"floor_bytes"`
			Budget size.Bytes `json:"budget_bytes"`
			Held   size.Bytes `json:"held_bytes"`
			Gone   bool       `json:"gone"`
		} `json:"trainers"`
	} `json:"ledger"`
}

func (r *rig) state() rigState {
	r.t.Helper()
	var s rigState
	r.getJSON("/api/v1/state", &s)
	return s
}

// held is what the device shows of the trainer's activation bytes.
func (r *rig) held() size.Bytes {
	for _, t := range r.state().Ledger.Trainers {
		if !t.Gone {
			return t.Held
		}
	}
	return 0
}

// untilHeld waits until the trainer has taken at least b.
func (r *rig) untilHeld(b size.Bytes) {
	r.t.Helper()
	r.until("training holds "+b.String(), func() bool { return r.held() >= b })
}

func (r *rig) getJSON(path string, into any) {
	r.t.Helper()
	resp, err := r.client.Get(r.admin + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		r.t.Fatal(err)
	}
}

// answer is one streamed chat answer.
type answer struct {
	status int
	body   string
	err    error
}

// chat asks for a streamed answer of n tokens to a prompt of words words.
func (r *rig) chat(words, n int) answer {
	body := fmt.Sprintf(`{"model":"lull-emulated","stream":true,"max_tokens":1024,"emulate":{"output_tokens":%d},"messages":[{"role":"user","content":%q}]}`,
		n, strings.TrimSpace(strings.Repeat("word ", words)))
	resp, err := r.client.Post(r.base+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, body: string(text), err: err}
}

// burst sends k of them at once and returns the answers.
func (r *rig) burst(k, words, n int) []answer {
	out := make([]answer, k)
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { out[i] = r.chat(words, n) })
	}
	wg.Wait()
	return out
}

func (r *rig) mustAllBeWhole(answers []answer) {
	r.t.Helper()
	for i, a := range answers {
		if a.err != nil || a.status != 200 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			r.t.Errorf("answer %d: status %d, err %v, ends %q", i, a.status, a.err, a.body[max(0, len(a.body)-80):])
		}
	}
}

// syncBuffer collects logs of several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func quietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
