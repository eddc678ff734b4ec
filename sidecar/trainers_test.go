package sidecar

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

func TestEndedProcessHoldsNothing(t *testing.T) {
	if _, err := (&trainerPeer{ended: true}).read(); !errors.Is(err, device.ErrGone) {
		t.Errorf("error %v, want ErrGone", err)
	}
}

func TestBytesBelowTheBaselineAreNone(t *testing.T) {
	p, err := device.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if b, err := (&trainerPeer{process: p, baseline: 1 << 40}).read(); err != nil || b != 0 {
		t.Errorf("got %v, %v, want 0", b, err)
	}
}

func TestTrainerOnHostMemoryIsOnTheOnlyHostDevice(t *testing.T) {
	one := &sessions{devices: map[handover.DeviceID]bool{"host0": true}}
	two := &sessions{devices: map[handover.DeviceID]bool{"host0": true, "host1": true}}
	for _, c := range []struct {
		s    *sessions
		said string
		want handover.DeviceID
		ok   bool
	}{{one, "cpu", "host0", true}, {one, "host0", "host0", true}, {one, "cuda:0", "", false}, {two, "cpu", "", false}, {two, "host1", "host1", true}} {
		if got, ok := c.s.place(c.said); got != c.want || ok != c.ok {
			t.Errorf("%q among %d devices: %q %v, want %q %v", c.said, len(c.s.devices), got, ok, c.want, c.ok)
		}
	}
}

func TestOnlyThisMachinesServersAreFoundByTheirPort(t *testing.T) {
	for url, want := range map[string]int{
		"http://127.0.0.1:8000": 8000, "http://localhost:8001": 8001, "http://[::1]:8002": 8002,
		"http://192.0.2.7:8000": 0, "https://127.0.0.1": 443,
	} {
		at, err := endpoint.Parse(url)
		if got := portOf(at.URL()); err != nil || got != want {
			t.Errorf("%s: port %d, want %d (%v)", url, got, want, err)
		}
	}
}

func TestHelloIsKeptWithinTheDevice(t *testing.T) {
	s := &sessions{devices: map[handover.DeviceID]bool{"host0": true}, capacity: map[handover.DeviceID]size.Bytes{"host0": size.GiB}}
	h := trainer.Hello{Device: "host0", Floor: 1 << 62, Ceiling: 1<<63 - 1, Held: 5, MinBudget: 1 << 40, Baseline: 2 * size.GiB}
	s.clamp(&h)
	if h.Floor != size.GiB || h.Ceiling != size.GiB || h.Held != 5 || h.MinBudget != size.GiB || h.Baseline != 2*size.GiB {
		t.Errorf("got %+v, want nothing above the capacity but the baseline", h)
	}
	for _, device := range []string{"host0", "cpu"} { // acks and requests, under either name
		if got := s.within(device, 1<<62); got != size.GiB {
			t.Errorf("%s: got %v, want the capacity", device, got)
		}
	}
}

func TestFloodOfBadLinesIsCountedNotLogged(t *testing.T) {
	now := time.Unix(0, 0)
	l := &limiter{most: 2, every: time.Second, now: func() time.Time { return now }}
	passed := 0
	for range 100 {
		if _, ok := l.allow(); ok {
			passed++
		}
	}
	now = now.Add(time.Second)
	if dropped, ok := l.allow(); passed != 2 || !ok || dropped != 98 {
		t.Errorf("passed %d, then dropped %d, %v; want 2, 98, true", passed, dropped, ok)
	}
}

func TestDeviceThatIsSmallerThanItsServerIsNamed(t *testing.T) {
	cfg := handover.Config{
		Devices: []handover.DeviceConfig{{ID: "small", Capacity: 512 * size.MiB, Headroom: 64 * size.MiB}, {ID: "large", Capacity: size.GiB}},
		Engines: []handover.EngineConfig{{ID: "main", Devices: []handover.DeviceID{"small", "large"}, Resident: 256 * size.MiB, Pool: 640 * size.MiB}},
	}
	got := tight(cfg)
	want := "devices.small.capacity: 512.0MiB is below resident + pool + headroom, 960.0MiB: the server's KV is bound below its pool even without training"
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestModelWithoutRoomIsNamedAndManyModelsAreNone: models take turns.
func TestModelWithoutRoomIsNamedAndManyModelsAreNone(t *testing.T) {
	model := func(id handover.EngineID, bytes size.Bytes) handover.EngineConfig {
		return handover.EngineConfig{ID: id, Devices: []handover.DeviceID{"d0"}, Pool: bytes, Whole: true, Await: time.Minute}
	}
	cfg := handover.Config{
		Devices: []handover.DeviceConfig{{ID: "d0", Capacity: size.GiB, Headroom: 64 * size.MiB}},
		Engines: []handover.EngineConfig{{ID: "t", Devices: []handover.DeviceID{"d0"}, Resident: 256 * size.MiB}, model("t/a", 704*size.MiB), model("t/b", 704*size.MiB)},
	}
	if got := tight(cfg); len(got) != 0 {
		t.Errorf("each has room by itself: got %q, want no word", got)
	}
	cfg.Engines[2].Pool++
	got := tight(cfg)
	if len(got) != 1 || got[0] != "engines.t/b: its 704.0MiB have no room on d0 beside the 320.0MiB that stay there of 1.0GiB: once unloaded it does not come back, and its requests get the server's refusal" {
		t.Errorf("got %q, want the one that has none", got)
	}
}

func TestTrainersThatComeAndGoFillNoLog(t *testing.T) {
	now := time.Unix(100, 0)
	logs := &syncBuffer{}
	s := &sessions{loop: &loop{ctx: t.Context(), clock: func() time.Time { return now }}, log: slog.New(slog.NewTextHandler(logs, nil))}
	for range 2 {
		for range 500 {
			s.note(slog.LevelInfo, "trainer connected", "trainer", "t")
		}
		now = now.Add(time.Second)
	}
	lines := strings.Split(strings.TrimSpace(logs.String()), "\n")
	if len(lines) != 2*linesPerSecond || !strings.HasSuffix(lines[linesPerSecond], "trainer=t dropped_before=480") {
		t.Errorf("%d lines, want %d a second, and the count of those left out: %q", len(lines), linesPerSecond, lines[len(lines)-1])
	}
}

func TestConnectedTrainersAreCounted(t *testing.T) {
	r := newRig(t, nil)
	shows := func(line string) {
		t.Helper()
		r.until("metrics show "+line, func() bool {
			resp, err := r.client.Get(r.admin + "/metrics")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			return strings.Contains(string(text), line+"\n")
		})
	}
	shows("lull_trainers_connected 0")
	p := startFakeTrainer(t, r.socket, "honest")
	shows("lull_trainers_connected 1")
	_ = p.Kill()
	shows("lull_trainers_connected 0")
}
