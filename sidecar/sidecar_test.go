package sidecar

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

func TestBurstTakesMemoryFromTrainingAndGivesItBack(t *testing.T) {
	r := newRig(t, nil)
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(500 * size.MiB)
	r.mustAllBeWhole(r.burst(12, 400, 60))
	var shrunk bool
	var list []Handover
	r.getJSON("/api/v1/handovers", &list)
	for _, h := range list {
		shrunk = shrunk || h.Direction == "shrink" && (h.Result == "confirmed" || h.Result == "late") && h.FreedBytes > 0 && h.TookUS > 0
	}
	if !shrunk {
		t.Errorf("no confirmed shrink that freed bytes among %+v", list)
	}
	r.untilHeld(500 * size.MiB)
}

func TestRequestsFlowWhileTheTrainerSaysNothing(t *testing.T) {
	for _, manner := range []string{"silent", "lying"} {
		t.Run(manner, func(t *testing.T) {
			r := newRig(t, nil)
			startFakeTrainer(t, r.socket, manner)
			r.untilHeld(400 * size.MiB)
			r.mustAllBeWhole(r.burst(8, 600, 40))
			s := r.state()
			if bound, held := s.Ledger.Engines[0].Bound, s.Ledger.Trainers[0].Held; bound+held > rigElastic {
				t.Errorf("the bound rose to %v though the device shows training with %v of %v", bound, held, rigElastic)
			}
		})
	}
}

func TestKilledTrainersBytesAreUsedOnceTheDeviceShowsThemGone(t *testing.T) {
	r := newRig(t, nil)
	p := startFakeTrainer(t, r.socket, "silent")
	r.untilHeld(400 * size.MiB)
	answers := make(chan []answer)
	go func() { answers <- r.burst(10, 600, 40) }()
	r.until("a shrink is owed", func() bool {
		text, _ := os.ReadFile(r.file.Telemetry.Events)
		return strings.Contains(string(text), `"shrink":true`)
	})
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.mustAllBeWhole(<-answers)
	r.until("the ledger has forgotten the trainer", func() bool { return len(r.state().Trainers) == 0 })
}

func TestTrainingMakesRoomForARestartOfTheEngine(t *testing.T) {
	r := newRig(t, nil)
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(500 * size.MiB)
	_ = r.engine.Process.Kill()
	_ = r.engine.Wait()
	r.until("the ledger knows that the engine is down and training has made room for its pool", func() bool {
		s := r.state()
		// The pool is all that is elastic here; the server's heap may go a little beyond it, into the headroom.
		return s.Ledger.Engines[0].Down && s.Ledger.Devices[0].Over < rigHeadroom && s.Ledger.Trainers[0].Budget == 0
	})
	if a := r.chat(10, 2); a.status != http.StatusBadGateway || !strings.Contains(a.body, "lull_upstream_unreachable") {
		t.Errorf("with the engine down: %d %q, want 502 with the code lull_upstream_unreachable", a.status, a.body)
	}
	r.startEngine()
	r.until("the engine is up again", func() bool { return !r.state().Ledger.Engines[0].Down })
	r.mustAllBeWhole(r.burst(4, 200, 20))
	r.untilHeld(500 * size.MiB)
}

func TestRestartedSidecarFencesBeforeItDecides(t *testing.T) {
	r := newRig(t, nil)
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(500 * size.MiB)
	first := r.state().Session
	r.stop()
	r.start()
	if now := r.state().Session; now != first+1 {
		t.Errorf("session %d after %d, want one more", now, first)
	}
	startFakeTrainer(t, r.socket, "honest") // the first ended with its connection
	fenced := false
	r.untilHeld(500 * size.MiB)
	text, err := os.ReadFile(r.file.Telemetry.Events) // of this session alone
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fenced = fenced || strings.Contains(line, `"kind":"bound_set"`)
		if strings.Contains(line, `"kind":"order"`) && strings.Contains(line, `"reason":"grow"`) && !fenced {
			t.Fatalf("memory was lent before the engine confirmed a bound of this session:\n%s", text)
		}
	}
	if !fenced {
		t.Error("the engine was not fenced")
	}
	r.mustAllBeWhole(r.burst(4, 200, 20))
}

func TestTrainerGetsAHigherFloorBeforeItTakesIt(t *testing.T) {
	r := newRig(t, nil)
	startFakeTrainer(t, r.socket, "asking")
	want := fakeFloor + 8*size.MiB + fakeRise
	r.until("the ledger has the higher floor", func() bool {
		s := r.state()
		return len(s.Ledger.Trainers) == 1 && s.Ledger.Trainers[0].Floor == want
	})
	r.untilHeld(400 * size.MiB)
}

// unheardOf is an event that the core has no handler for: it panics.
type unheardOf struct{ handover.Tick }

func TestBrokenCoreDelaysNobodyAndRaisesNothing(t *testing.T) {
	r := newRig(t, func(f *config.File) { f.SLO.TTFT = time.Minute }) // all the slack in the world
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(500 * size.MiB)
	r.sidecar.loop.post(t.Context(), input{event: func(at handover.At) handover.Event {
		return unheardOf{handover.Tick{At: at}}
	}})
	r.until("nothing is lent any more", func() bool { return !r.state().Lending })
	r.until("training is told to its least", func() bool {
		text, _ := os.ReadFile(r.file.Telemetry.Events)
		return strings.Contains(string(text), `"kind":"ack"`) && strings.Contains(string(text), `"bytes":0,"how":"drop"`)
	})
	start := time.Now()
	r.mustAllBeWhole(r.burst(4, 20, 2))
	if took := time.Since(start); took > 30*time.Second { // half of what a wait for the core would take
		t.Errorf("four short answers took %v: requests wait for a core that is gone", took)
	}
	if r.sidecar.lent.Load() {
		t.Error("the gate still asks a core that is gone")
	}
}

func TestWithoutADeviceRequestsPassAndNothingIsLent(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	r.file.Devices, r.file.Engines[0].Devices = nil, nil
	r.start()
	r.mustAllBeWhole(r.burst(4, 50, 10))
	if s := r.state(); s.Lending {
		t.Error("says that it lends, with nothing to lend")
	}
	if _, err := os.Stat(r.socket); err == nil {
		t.Error("listens for trainers that it has nothing for")
	}
}

func TestTrainerOnAnUnknownDeviceIsToldTheNames(t *testing.T) {
	r := newRig(t, nil)
	r.mustBeRefused("host7", `{"type":"error","what":"hello","where":"device","rule":"got \"host7\", want a device of lull.yaml: host0; nothing is lent"}`)
}

func TestTrainerWhoseMemoryCannotBeReadIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	r.tweak = func(s *Sidecar) {
		s.process = func(pid int) (*device.Process, error) { return nil, device.ErrGone }
	}
	r.start()
	r.mustBeRefused("host0", `{"type":"error","what":"hello","where":"pid","rule":"the sidecar cannot read this process's memory, want one in its own PID namespace; nothing is lent"}`)
	if n := len(r.state().Ledger.Trainers); n != 0 {
		t.Errorf("%d trainers in the ledger, want none: their bytes could never be confirmed", n)
	}
	r.mustAllBeWhole(r.burst(4, 50, 10))
}

// mustBeRefused says hello from a device and waits for the line.
func (r *rig) mustBeRefused(place, want string) {
	r.t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, `{"type":"hello","version":1,"job":"lost","rank":0,"world":1,"pid":%d,"device":%q,"baseline":0,"floor":0,"floor_known":true,"ceiling":0,"held":0,"last_epoch":0,"min_budget":0,"suspended":0}`+"\n", os.Getpid(), place)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	var said []string
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		said = append(said, lines.Text())
		if lines.Text() == want {
			return
		}
	}
	r.t.Errorf("the sidecar said %q, want %s", said, want)
}

func TestOrderThatIsNotMetIsSaidInTheState(t *testing.T) {
	r := newRig(t, nil)
	startFakeTrainer(t, r.socket, "lying")
	r.untilHeld(400 * size.MiB)
	r.mustAllBeWhole(r.burst(8, 600, 40))
	r.until("the state names the order", func() bool {
		s := r.state()
		return len(s.Trainers) == 1 && strings.Contains(s.Trainers[0].Problem, "acked, but the device does not show its bytes gone")
	})
	if !strings.Contains(r.logs.String(), "order stays unconfirmed") {
		t.Error("the log does not say so")
	}
	if s := r.state(); len(s.Problems) != 0 {
		t.Errorf("problems %v: a trainer's trouble must not make the data path unready", s.Problems)
	}
}

func TestEngineThatComesLateIsJoinedWhenItAnswers(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	_ = r.engine.Process.Kill()
	_ = r.engine.Wait()
	r.launch()
	startFakeTrainer(t, r.socket, "honest") // before there is anything to share
	if a := r.chat(5, 2); a.status != http.StatusBadGateway {
		t.Errorf("without an engine: %d %q, want 502", a.status, a.body)
	}
	if r.state().Lending {
		t.Error("lends before the engine has said what it is")
	}
	r.startEngine()
	r.untilHeld(400 * size.MiB)
	r.mustAllBeWhole(r.burst(4, 50, 10))
}

func TestReadyzNamesTheEngineThatDoesNotAnswer(t *testing.T) {
	r := newRig(t, nil)
	_ = r.engine.Process.Kill()
	_ = r.engine.Wait()
	r.until("readyz says so", func() bool {
		resp, err := r.client.Get(r.admin + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == 503 && strings.Contains(string(text), "engine main") && strings.Contains(string(text), "no answer")
	})
}

func TestSecondSidecarOfADeviceIsRefused(t *testing.T) {
	r := newRig(t, nil)
	_, err := New(r.file, quietLogger())
	if err == nil || !strings.Contains(err.Error(), "host0.lock: another sidecar holds it") {
		t.Errorf("error %v", err)
	}
}

func TestBadCoreValueNamesItsKey(t *testing.T) {
	f := config.ForUpstream("http://127.0.0.1:1")
	f.Policy.Quantile = 99
	_, err := New(f, quietLogger())
	if err == nil || err.Error() != "policy.quantile: got 99, want a fraction in (0, 1)" {
		t.Errorf("error %v", err)
	}
}

func TestInFlightIsZeroAfterEveryEnding(t *testing.T) {
	r := newRig(t, nil)
	r.mustAllBeWhole(r.burst(6, 50, 10))
	short := &http.Client{Transport: &http.Transport{}, Timeout: 50 * time.Millisecond}
	defer short.CloseIdleConnections()
	body := `{"model":"lull-emulated","stream":true,"max_tokens":900,"emulate":{"output_tokens":900},"messages":[{"role":"user","content":"one two"}]}`
	if resp, err := short.Post(r.base+"/v1/chat/completions", "application/json", strings.NewReader(body)); err == nil {
		_, _ = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	r.until("nobody is in flight", func() bool {
		resp, err := r.client.Get(r.admin + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), "lull_requests_in_flight 0\n")
	})
}

func TestEngineThatDoesNotAnswerIsSaidInTheLogOnce(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.file.Engines[0].URL = "http://" + l.Addr().String()
	_ = l.Close()
	r.launch()
	const text = "an engine does not answer; requests are relayed, nothing is lent yet"
	r.until("it is said", func() bool { return strings.Contains(r.logs.String(), text) })
	time.Sleep(3 * assembleRetry) // more tries
	if n := strings.Count(r.logs.String(), text); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}
