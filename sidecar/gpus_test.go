package sidecar

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// shelf opens fake GPUs by what lull.yaml calls them.
type shelf map[string]*fakeGPU

func (s shelf) open(which string) (gpu, error) {
	if g := s[which]; g != nil {
		return g, nil
	}
	return nil, errors.New("device: gpu " + which + ": no such GPU here")
}

func nvidia(id, gpu string, capacity, headroom size.Bytes) config.Device {
	return config.Device{ID: id, Kind: config.KindNVIDIA, GPU: config.GPU(gpu), Capacity: capacity, Headroom: headroom}
}

func TestGPUsOfAConfigAreOpenedAndFitted(t *testing.T) {
	whole, twin, dead := newFakeGPU(80*size.GiB), newFakeGPU(80*size.GiB), newFakeGPU(size.GiB)
	twin.facts.UUID = "GPU-2"
	dead.broken = errors.New("device: gpu 9: the GPU has fallen off the bus: it needs a reset")
	all := shelf{"0": whole, fakeUUID: whole, "1": twin, "9": dead}
	host := config.Device{ID: "host0", Kind: config.KindHost, Capacity: size.GiB}
	const relayed = "; requests are relayed and nothing is lent on it until a restart"
	for name, c := range map[string]struct {
		devices  []config.Device
		engine   []string
		want     []config.Device
		onDevice bool
		problems map[string]string
		closed   int
	}{
		"all of it":  {[]config.Device{nvidia("a", "0", 0, 0)}, []string{"a"}, []config.Device{nvidia("a", "0", 80*size.GiB, 0)}, true, nil, 0},
		"a part":     {[]config.Device{nvidia("a", "0", 40*size.GiB, size.GiB)}, []string{"a"}, []config.Device{nvidia("a", "0", 40*size.GiB, size.GiB)}, true, nil, 0},
		"rounded up": {[]config.Device{nvidia("a", "0", 96*size.GiB, 0)}, []string{"a"}, []config.Device{nvidia("a", "0", 80*size.GiB, 0)}, true, map[string]string{"a": "devices.a.capacity: got 96.0GiB, want at most what the GPU has, 80.0GiB, which counts"}, 0},
		"headroom":   {[]config.Device{nvidia("a", "0", 0, 90*size.GiB)}, []string{"a"}, nil, false, map[string]string{"a": "devices.a.headroom: got 90.0GiB, want below the GPU's capacity of 80.0GiB" + relayed}, 1},
		"one twice":  {[]config.Device{nvidia("a", "0", 0, 0), nvidia("b", fakeUUID, 0, 0)}, []string{"a"}, []config.Device{nvidia("a", "0", 80*size.GiB, 0)}, true, map[string]string{"b": `devices.b.gpu: got "` + fakeUUID + `", which is that of a (` + fakeUUID + "), want each GPU once" + relayed}, 1},
		"missing":    {[]config.Device{host, nvidia("a", "7", 0, 0)}, []string{"a"}, []config.Device{host}, false, map[string]string{"a": "device: gpu 7: no such GPU here" + relayed}, 0},
		"half of two": {[]config.Device{nvidia("a", "0", 0, 0), nvidia("b", "7", 0, 0)}, []string{"a", "b"}, []config.Device{nvidia("a", "0", 80*size.GiB, 0)}, false,
			map[string]string{"b": "device: gpu 7: no such GPU here" + relayed}, 0},
		"both of two": {[]config.Device{nvidia("a", "0", 0, 0), nvidia("b", "1", 0, 0)}, []string{"a", "b"}, []config.Device{nvidia("a", "0", 80*size.GiB, 0), nvidia("b", "1", 80*size.GiB, 0)}, true, nil, 0},
		"lost":        {[]config.Device{nvidia("a", "9", 0, 0)}, []string{"a"}, nil, false, map[string]string{"a": "device: gpu 9: the GPU has fallen off the bus: it needs a reset" + relayed}, 1},
		"none named":  {[]config.Device{host}, []string{"host0"}, []config.Device{host}, true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, g := range all {
				g.closed = 0
			}
			f := config.File{Devices: c.devices, Engines: []config.Engine{{Name: "e", Devices: c.engine}}}
			got := findGPUs(f, all.open)
			if !slices.Equal(got.file.Devices, c.want) || (len(got.file.Engines[0].Devices) > 0) != c.onDevice {
				t.Errorf("got  %+v, engine on %v\nwant %+v, engine on a device %v", got.file.Devices, got.file.Engines[0].Devices, c.want, c.onDevice)
			}
			for id, want := range c.problems {
				if got.problems[id] != want {
					t.Errorf("got  %q\nwant %q", got.problems[id], want)
				}
			}
			if len(got.problems) != len(c.problems) || whole.closed+dead.closed != c.closed {
				t.Errorf("problems %q, %d closed, want %d", got.problems, whole.closed+dead.closed, c.closed)
			}
			if len(f.Engines[0].Devices) != len(c.engine) {
				t.Error("the given config was changed")
			}
		})
	}
}

func TestDriverThatHangsAtTheStartKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, answer := newFakeGPU(size.GiB), make(chan struct{})
		hung := func(string) (gpu, error) { <-answer; return g, nil }
		found := findGPUs(config.File{Devices: []config.Device{nvidia("a", "0", 0, 0)}}, hung)
		if want := "device: gpu 0: the driver has not answered in 20s; requests are relayed and nothing is lent on it until a restart"; found.problems["a"] != want {
			t.Errorf("got %q, want %q", found.problems["a"], want)
		}
		close(answer)
		synctest.Wait()
		if g.closed != 1 {
			t.Errorf("what came too late was closed %d times, want once", g.closed)
		}
	})
}

// A server of eight GPUs whose driver hangs serves after 34 s, not 160.
func TestDriverThatHangsIsNotWaitedForAgainByEveryGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, answer, began := newFakeGPU(size.GiB), make(chan struct{}), time.Now()
		open := func(which string) (gpu, error) {
			if which == "3" {
				return good, nil
			}
			<-answer
			return nil, errors.New("device: gpu " + which + ": too late")
		}
		var f config.File
		for i := range 4 {
			f.Devices = append(f.Devices, nvidia(string(rune('a'+i)), string(rune('0'+i)), 0, 0))
		}
		found := findGPUs(f, open)
		if took := time.Since(began); took != gpuStart+2*gpuLate {
			t.Errorf("took %v, want %v for the first and %v for each of two more", took, gpuStart, gpuLate)
		}
		if len(found.problems) != 3 || found.open["d"].gpu != good {
			t.Errorf("problems %q, want the three that hang left out and the fourth open", found.problems)
		}
		const want = "device: gpu 1: the driver has not answered in 2s; requests are relayed and nothing is lent on it until a restart"
		if found.problems["b"] != want {
			t.Errorf("got %q, want %q", found.problems["b"], want)
		}
		close(answer)
		synctest.Wait()
	})
}

func TestCheckSaysWhatGPUsThereAre(t *testing.T) {
	g := newFakeGPU(80 * size.GiB)
	g.foreign, g.why = 3*size.GiB, hidden
	f := config.File{Devices: []config.Device{nvidia("a", "0", 96*size.GiB, 0)}}
	lines, err := describeGPUs(f, shelf{"0": g}.open)
	want := []string{
		"devices.a.capacity: got 96.0GiB, want at most what the GPU has, 80.0GiB, which counts",
		"devices.a: NVIDIA Fake, 80.0GiB, " + fakeUUID + ", driver 570.86; 3.0GiB in use, processes cannot be told apart: " + hidden,
	}
	if err != nil || !slices.Equal(lines, want) || g.closed != 1 {
		t.Errorf("got %q, %v, closed %d times; want %q", lines, err, g.closed, want)
	}
	f.Devices = append(f.Devices, nvidia("b", "1", 0, 0))
	if _, err := describeGPUs(f, shelf{"0": g}.open); !errors.Is(err, ErrNoGPU) || err.Error() != "device: gpu 1: no such GPU here: lull serve relays with this and lends nothing on it" {
		t.Errorf("error %v", err)
	}
}

func testDriver(g *fakeGPU, d config.Device) *gpuDriver {
	l := &loop{clock: time.Now, log: quietLogger()}
	r, _ := g.Read(context.Background())
	return newGPUDriver(l, d, foundGPU{g, r})
}

func TestTrainerOnAGPUIsFoundByUUIDAndWhereThereIsOneByName(t *testing.T) {
	first, second := newFakeGPU(size.GiB), newFakeGPU(size.GiB)
	second.facts.UUID, second.facts.Alone = "GPU-2", false
	a, b := testDriver(first, nvidia("gpu0", "0", 0, 0)), testDriver(second, nvidia("gpu1", "1", 0, 0))
	alone := &sessions{devices: map[handover.DeviceID]bool{"gpu0": true, "host0": true}, gpus: map[handover.DeviceID]*gpuDriver{"gpu0": a}}
	many := &sessions{devices: map[handover.DeviceID]bool{"gpu1": true}, gpus: map[handover.DeviceID]*gpuDriver{"gpu1": b}}
	for _, c := range []struct {
		s    *sessions
		said string
		want handover.DeviceID
	}{
		{alone, "gpu0", "gpu0"}, {alone, fakeUUID, "gpu0"}, {alone, "cuda:0", "gpu0"}, {alone, "cuda", "gpu0"}, {alone, "cuda:1", ""}, {alone, "cpu", "host0"},
		{many, "GPU-2", "gpu1"}, {many, "cuda:0", ""}, {many, "cpu", ""}, {many, fakeUUID, ""},
	} {
		if got, ok := c.s.place(c.said); got != c.want || ok != (c.want != "") {
			t.Errorf("%q: got %q, %v, want %q", c.said, got, ok, c.want)
		}
	}
}

func TestTreeOnAGPUIsThatOfTheProcessAndThoseBelow(t *testing.T) {
	seen := &gpuSeen{reading: device.Reading{Processes: map[int]size.Bytes{70: size.GiB, 71: 2 * size.GiB, 80: 4 * size.GiB}}, above: map[int][]int{70: {70, 1}, 71: {71, 70, 1}, 80: {80, 1}}}
	if b, err := seen.tree(70); err != nil || b != 3*size.GiB {
		t.Errorf("got %v, %v, want those of 70 and 71", b, err)
	}
	if b, err := seen.tree(90); err != nil || b != 0 {
		t.Errorf("a process that is not there: %v, %v", b, err)
	}
	seen.reading.Why = hidden
	seen.reading.Processes = nil
	if _, err := seen.tree(70); !errors.Is(err, device.ErrUnreadable) || !strings.Contains(err.Error(), hidden) {
		t.Errorf("error %v", err)
	}
}

// oneProcess is a GPU on which the process 70 holds some bytes.
type oneProcess struct {
	*fakeGPU
	bytes size.Bytes
	hangs bool
}

func (g *oneProcess) Read(ctx context.Context) (device.Reading, error) {
	if g.hangs {
		<-ctx.Done()
		return device.Reading{}, context.Cause(ctx)
	}
	return device.Reading{Total: g.facts.Total, Used: g.bytes, Processes: map[int]size.Bytes{70: g.bytes}}, nil
}

// holding is an engine that holds so much KV.
type holding struct {
	engine.Engine
	kv size.Bytes
}

func (h holding) Observe(context.Context) (engine.Sample, error) {
	return engine.Sample{PID: 70, Held: h.kv}, nil
}

// What is resident never falls again: KV that a reading of a moment ago still shows
// must not be taken for it.
func TestResidentBytesOnAGPUAreOfTheMomentOfTheEnginesWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &oneProcess{fakeGPU: newFakeGPU(80 * size.GiB), bytes: 12 * size.GiB}
		l := &loop{clock: time.Now, log: quietLogger()}
		first, _ := g.Read(t.Context())
		r := &residency{now: time.Now, books: gpuBooks{newGPUDriver(l, nvidia("gpu0", "0", 0, 0), foundGPU{g, first})}}
		g.bytes = 4 * size.GiB // it gave 8 GiB of KV back
		e := holding{kv: 2 * size.GiB}
		sample, _ := e.Observe(t.Context())
		if b := r.resident(t.Context(), e, sample); b != 2*size.GiB {
			t.Errorf("got %v resident, want 2.0GiB", b)
		}
		time.Sleep(residencyEvery)
		g.hangs, sample.Resident = true, size.GiB
		began := time.Now()
		if b := r.resident(t.Context(), e, sample); b != size.GiB || time.Since(began) != freshWithin {
			t.Errorf("got %v after %v of a driver that hangs, want the engine's word after %v", b, time.Since(began), freshWithin)
		}
	})
}

// TestEngineThatIsNotOnItsGPUIsNamed: by the process that was looked for; and no more
// once it is there.
func TestEngineThatIsNotOnItsGPUIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &oneProcess{fakeGPU: newFakeGPU(80 * size.GiB), bytes: 12 * size.GiB}
		l := &loop{clock: time.Now, log: quietLogger(), view: newView(nil, 1)}
		first, _ := g.Read(t.Context())
		r := &residency{now: time.Now, books: gpuBooks{newGPUDriver(l, nvidia("gpu0", "0", 0, 0), foundGPU{g, first})}, pid: 71}
		e := &engineDriver{id: "main", truth: r}
		server := holding{kv: 2 * size.GiB}
		sample, _ := server.Observe(t.Context())
		r.resident(t.Context(), server, sample)
		e.sayAbsent(l, r.absent)
		if got := l.view.problemList(); len(got) != 1 || !strings.Contains(got[0], "engine main process: NVML lists no process of pid 71 or below it on its GPU") {
			t.Errorf("problems %q, want the process that is not there", got)
		}
		time.Sleep(residencyEvery)
		r.pid = 70
		r.resident(t.Context(), server, sample)
		e.sayAbsent(l, r.absent)
		if got := l.view.problemList(); len(got) != 0 {
			t.Errorf("problems %q of a process that is there", got)
		}
	})
}

func TestCapacityIsWhatOthersLeaveOfIt(t *testing.T) {
	d := testDriver(newFakeGPU(80*size.GiB), nvidia("gpu0", "0", 60*size.GiB, 2*size.GiB))
	for _, c := range []struct {
		total, others size.Bytes
		blind         bool
		want          size.Bytes
	}{
		{80 * size.GiB, 5 * size.GiB, false, 60 * size.GiB}, {80 * size.GiB, 30 * size.GiB, false, 50 * size.GiB}, {80 * size.GiB, 30 * size.GiB, true, 48 * size.GiB},
		{40 * size.GiB, 0, false, 40 * size.GiB}, {80 * size.GiB, 80 * size.GiB, true, 0},
	} {
		if got := d.fit(c.total, c.others, c.blind); got != c.want {
			t.Errorf("total %v others %v blind %v: got %v, want %v", c.total, c.others, c.blind, got, c.want)
		}
	}
}

func TestMachinesMemoryIsNotAskedAboutGPUs(t *testing.T) {
	m := machine{total: func() (size.Bytes, error) { return size.GiB, nil }, limit: func() (size.Bytes, string, error) { return 0, "", nil }}
	if warnings, err := m.fits(config.File{Devices: []config.Device{nvidia("a", "0", 80*size.GiB, 0)}}); err != nil || len(warnings) > 0 {
		t.Errorf("got %q, %v", warnings, err)
	}
}
