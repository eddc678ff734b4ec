package sidecar

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// twoStages is an engine whose first stage holds four times the bytes of its second.
func twoStages() config.Engine {
	return config.Engine{Name: "main", Devices: []string{"gpu1", "gpu0"}, Stages: []config.Stage{
		{Devices: []string{"gpu0"}, BytesPerToken: 64 * size.KiB}, {Devices: []string{"gpu1"}, BytesPerToken: 16 * size.KiB, Pool: 30 * size.GiB},
	}}
}

func TestStagesOfTheFileReachTheCore(t *testing.T) {
	can, said := engine.Capabilities{Bound: true}, engine.Sample{Pool: 40 * size.GiB, BytesPerToken: 64 * size.KiB, BlockTokens: 16}
	got, err := describe(twoStages(), can, said, size.GiB)
	if err != nil || got.BytesPerToken != 64*size.KiB || len(got.Stages) != 2 || got.Stages[1].Pool != 30*size.GiB || got.Stages[1].Devices[0] != "gpu1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if on := got.On("gpu1", 4*size.GiB); on != size.GiB {
		t.Errorf("4.0GiB of the fullest stage are %v on the other, want 1.0GiB", on)
	}
	said.BytesPerToken = 16 * size.KiB
	const want = "engines.main.stages: the fullest has 64.0KiB a token, want 16.0KiB, which the server says of its own bytes: "
	if _, err := describe(twoStages(), can, said, size.GiB); err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, errNeverRight) {
		t.Errorf("a server of other bytes: %v, want %s", err, want)
	}
}

// shownTrees are books that show so much on each device.
type shownTrees []size.Bytes

func (s shownTrees) trees(context.Context, int) ([]size.Bytes, error) { return s, nil }
func (s shownTrees) beyond() bool                                     { return false }

// TestResidentOfAStageIsBesideItsOwnKV: the first device shows less of the server than
// the second, and more stands beside the KV on the second.
func TestResidentOfAStageIsBesideItsOwnKV(t *testing.T) {
	r := &residency{now: time.Now, books: shownTrees{9 * size.GiB, 11 * size.GiB}, layout: staged(twoStages())}
	e := holding{kv: 4 * size.GiB} // 1 GiB on gpu1, which is named first, 4 GiB on gpu0
	sample, _ := e.Observe(t.Context())
	if b := r.resident(t.Context(), e, sample); b != 8*size.GiB {
		t.Errorf("got %v resident, want the 8.0GiB beside 1.0GiB of KV", b)
	}
}

func TestKVOfAStageIsCountedByItsOwnBytesOnAGPU(t *testing.T) {
	d := testDriver(newFakeGPU(80*size.GiB), nvidia("gpu1", "1", 0, 0))
	truth := &residency{}
	l := &loop{engines: map[handover.EngineID]*engineDriver{"main": {devices: []handover.DeviceID{"gpu0", "gpu1"}, truth: truth}}}
	snap := handover.State{Engines: []handover.EngineState{stagedState()}}
	seen := see(device.Reading{Processes: map[int]size.Bytes{70: 40 * size.GiB}}, time.Now())
	if got := d.engines(l, snap, seen); got != 11*size.GiB {
		t.Errorf("got %v by its word, want 10.0GiB and a quarter of the 4.0GiB that the fullest holds", got)
	}
	truth.shown.Store(70)
	if got := d.engines(l, snap, seen); got != 15*size.GiB {
		t.Errorf("got %v by its process, want no more than 10.0GiB and a quarter of the bound", got)
	}
}

func stagedState() handover.EngineState {
	return handover.EngineState{
		ID: "main", Resident: 10 * size.GiB, Held: 4 * size.GiB, Bound: 20 * size.GiB, BoundFall: time.Millisecond,
		Stages: []handover.StageState{
			{Stage: 0, Devices: []handover.DeviceID{"gpu0"}, BytesPerToken: 64 * size.KiB, Held: 4 * size.GiB, Bound: 20 * size.GiB, Target: 24 * size.GiB, Lack: 2 * size.GiB},
			{Stage: 1, Devices: []handover.DeviceID{"gpu1"}, BytesPerToken: 16 * size.KiB, Held: size.GiB, Bound: 5 * size.GiB, Target: 6 * size.GiB},
		},
	}
}

func TestMemoryAndMetricsHaveEachStage(t *testing.T) {
	ledger := &handover.State{Engines: []handover.EngineState{stagedState()}}
	rows := memoryOf(ledger, map[handover.EngineID]engine.Sample{"main": {Evictable: 2 * size.GiB}}, nil, nil)
	if len(rows) != 2 || rows[0].Device != "gpu0" || rows[1].Device != "gpu1" {
		t.Fatalf("got %+v, want a row for each device", rows)
	}
	if b := rows[1].Bytes; b["kv_cache"] != int64(size.GiB/2) || b["cache"] != int64(size.GiB/2) || rows[0].Bytes["cache"] != int64(2*size.GiB) {
		t.Errorf("got %+v, want a quarter of the first stage's KV on the second", rows)
	}
	v := newView(nil, 1)
	v.state.Ledger = ledger
	shown := v.stages()
	if len(shown) != 2 || shown[0].Bytes["kv_lack"] != int64(2*size.GiB) || shown[1].Stage != 1 || shown[1].Bytes["kv_target"] != int64(6*size.GiB) {
		t.Errorf("got %+v", shown)
	}
}

func TestStageThatAShrinkWasForIsSaid(t *testing.T) {
	r := newRig(t, nil)
	done := make(chan struct{})
	r.sidecar.loop.post(t.Context(), input{do: func(l *loop) {
		l.performDone(handover.HandoverDone{Trainer: "t", Shrink: true, Reason: "arrival", Result: "confirmed", Stage: handover.StageID{Engine: "main", Stage: 1}})
		close(done)
	}})
	<-done
	var list []Handover
	r.getJSON("/api/v1/handovers", &list)
	if len(list) != 1 || list[0].Stage != "main/1" {
		t.Errorf("got %+v, want the stage named", list)
	}
	if text := r.metrics(); !strings.Contains(text, `lull_stage_shrinks_total{engine="main",stage="1"} 1`) {
		t.Error("no series of the stage's shrinks")
	}
}
