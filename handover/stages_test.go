package handover

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lull-project/lull/size"
)

// TestScalesAreExact against integers without a limit.
func TestScalesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := Bytes(rapid.Int64Range(1, 1<<40).Draw(t, "whole"))
		s := scale{part: Bytes(rapid.Int64Range(1, int64(whole)).Draw(t, "part")), whole: whole}
		b := Bytes(rapid.Int64Range(0, vast).Draw(t, "bytes"))
		exact := func(by, over Bytes, up bool) Bytes {
			q, r := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(int64(b)), big.NewInt(int64(by))), big.NewInt(int64(over)), new(big.Int))
			if up && r.Sign() > 0 {
				q.Add(q, big.NewInt(1))
			}
			if q.Cmp(big.NewInt(vast)) > 0 {
				return vast
			}
			return Bytes(q.Int64())
		}
		if got, want := s.up(b), exact(s.part, s.whole, true); got != want {
			t.Fatalf("up(%d) = %d, want %d", b, got, want)
		}
		if got, want := s.fit(b), exact(s.whole, s.part, false); got != want {
			t.Fatalf("fit(%d) = %d, want %d", b, got, want)
		}
		if fits := s.fit(b); fits < vast && (s.up(fits) > b || s.up(fits+1) <= b) {
			t.Fatalf("fit(%d) = %d, whose like on the device is %d, and of one more %d", b, fits, s.up(fits), s.up(fits+1))
		}
		from := Bytes(rapid.Int64Range(0, vast).Draw(t, "from"))
		if fall := s.freeing(b); fall < vast && fall <= from && s.up(from)-s.up(from-fall) < b {
			t.Fatalf("a fall of %d from %d brings %d, want %d", fall, from, s.up(from)-s.up(from-fall), b)
		}
	})
}

func TestBadStagesNameKeyValueAndRule(t *testing.T) {
	for _, c := range []struct {
		stages []Stage
		want   string
	}{
		{[]Stage{{BytesPerToken: 1}}, "engines.llm.stages[0].devices: got none, want at least one"},
		{[]Stage{{Devices: []DeviceID{"d0"}}}, "engines.llm.stages[0].bytes_per_token: got 0B, want more than 0: a stage without KV has no place here"},
		{[]Stage{{Devices: []DeviceID{"d0"}, BytesPerToken: 1, Pool: -1}}, "engines.llm.stages[0].pool: got -1B, want 0 (what the engine's pool takes there) or more"},
		{[]Stage{{Devices: []DeviceID{"d0"}, BytesPerToken: 1}, {Devices: []DeviceID{"d0"}, BytesPerToken: 1}}, `engines.llm.stages[1].devices: got "d0", want devices of the engine, each in one stage`},
		{[]Stage{{Devices: []DeviceID{"x"}, BytesPerToken: 1}}, `engines.llm.stages[0].devices: got "x", want devices of the engine, each in one stage`},
		{[]Stage{{Devices: []DeviceID{"d0"}, BytesPerToken: 64 * size.KiB}}, `engines.llm.stages: "d1" is in none, want each of the engine's devices in one`},
		{[]Stage{{Devices: []DeviceID{"d0"}, BytesPerToken: size.KiB}, {Devices: []DeviceID{"d1"}, BytesPerToken: 2 * size.KiB}}, "engines.llm.bytes_per_token: got 64.0KiB, want that of the fullest stage, 2.0KiB"},
	} {
		cfg := demoConfig()
		cfg.Devices = append(cfg.Devices, DeviceConfig{ID: "d1", Capacity: size.GiB})
		cfg.Engines[0].Devices = []DeviceID{"d0", "d1"}
		cfg.Engines[0].Stages = c.stages
		if _, err := New(cfg); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("got %v, want ... %s", err, c.want)
		}
	}
}

// staged is a core whose engine has a stage on each of some devices, with all lent to
// the trainers of jobs of their own on those that are named.
func staged(t *testing.T, tokens []Bytes, trained []bool) *Handover {
	c := demoConfig()
	c.Grace = 0
	device, e := c.Devices[0], &c.Engines[0]
	c.Devices, e.Devices, e.BytesPerToken = nil, nil, 0
	var trainers []string
	for i, b := range tokens {
		device.ID = DeviceID(fmt.Sprintf("d%d", i))
		c.Devices, e.Devices = append(c.Devices, device), append(e.Devices, device.ID)
		e.Stages = append(e.Stages, Stage{Devices: []DeviceID{device.ID}, BytesPerToken: b})
		e.BytesPerToken = max(e.BytesPerToken, b)
		if trained[i] {
			trainers = append(trainers, fmt.Sprintf("t%d@d%d/j%d", i, i, i))
		}
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	(&scenario{h: h}).bringUp(t, args{"trainers": strings.Join(trainers, ",")})
	return h
}

// TestEachStageAsksForItsOwnLackUpToTheTightest against a count by hand, for any
// stages and any least that trainers keep.
func TestEachStageAsksForItsOwnLackUpToTheTightest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(rt, "stages")
		tokens, trained := make([]Bytes, n), make([]bool, n)
		for i := range tokens {
			tokens[i] = Bytes(rapid.IntRange(1024, 65_536).Draw(rt, "bytes a token"))
			trained[i] = i == 0 || rapid.Bool().Draw(rt, "trained")
		}
		h := staged(t, tokens, trained)
		for _, tr := range h.trainers {
			tr.minBudget = min(Bytes(rapid.IntRange(0, 40).Draw(rt, "least"))*16*mib, tr.budget)
			tr.least = tr.minBudget
		}
		e := h.engines[0]
		have, spare := make([]Bytes, n), make([]Bytes, n)
		for i, d := range h.devices {
			have[i] = e.on(d, e.kv()) + d.free()
			for _, tr := range d.trainers {
				spare[i] = tr.budget - tr.minBudget
			}
		}
		kv := e.kv()
		asked := map[TrainerID]Order{}
		for _, a := range h.Step(Arrived{At: h.now, ID: "a", Engine: "llm", NeedBytes: Bytes(rapid.IntRange(1, 600).Draw(rt, "need")) * mib, Slack: ms}) {
			if o, ok := a.(Order); ok {
				asked[o.Trainer] = o
			}
		}
		whole := float64(e.cfg.BytesPerToken)
		reach := float64(e.target)
		for i := range tokens {
			reach = min(reach, float64(have[i]+spare[i])/float64(tokens[i])*whole)
		}
		for i, d := range h.devices {
			lack := Bytes(reach*float64(tokens[i])/whole) - have[i]
			id := TrainerID(fmt.Sprintf("t%d", i))
			o, ordered := asked[id]
			if lack <= 1 { // a byte is what rounding leaves
				if ordered && lack < -1 {
					rt.Fatalf("stage %d: asked %s for %+v, where nothing lacks (%v)", i, id, o, lack)
				}
				continue
			}
			if !ordered || o.Stage != (StageID{"llm", i}) || o.Stage.String() != fmt.Sprintf("llm/%d", i) {
				rt.Fatalf("stage %d lacks %v: got %+v, want an order that names it", i, lack, o)
			}
			if took := spare[i] + d.trainers[0].minBudget - o.Bytes; took < lack-1 || took > lack+h.cfg.Quantum+1 {
				rt.Fatalf("stage %d lacks %v, and %v is asked back", i, lack, took)
			}
		}
		if len(asked) > 0 && e.target <= kv {
			rt.Fatalf("asked %v although the bound of %v covers %v", asked, kv, e.target)
		}
	})
}

// TestStateNamesTheTightestStage by how few tokens fit there, whatever bytes they take.
func TestStateNamesTheTightestStage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(rt, "stages")
		tokens, trained := make([]Bytes, n), make([]bool, n)
		for i := range tokens {
			tokens[i], trained[i] = Bytes(rapid.IntRange(1024, 65_536).Draw(rt, "bytes a token")), i == 0
		}
		h := staged(t, tokens, trained)
		for _, d := range h.devices {
			d.capacity += Bytes(rapid.IntRange(0, 500).Draw(rt, "more")) * mib
		}
		s := h.Snapshot().Engines[0]
		fewest, at := 0.0, 0
		for i, stage := range s.Stages {
			if fit := float64(stage.Room) / float64(tokens[i]); i == 0 || fit < fewest*(1-1e-6) {
				fewest, at = fit, i
			}
		}
		got := s.Stages[*s.Tightest]
		if fit := float64(got.Room) / float64(tokens[*s.Tightest]); fit > fewest*(1+1e-6) {
			rt.Fatalf("names stage %d, where %.0f tokens fit, and in stage %d %.0f", *s.Tightest, fit, at, fewest)
		}
		for i, stage := range s.Stages {
			if stage.Bound != s.On(h.devices[i].cfg.ID, s.Bound) || stage.Lack != max(0, stage.Target-stage.Room) {
				rt.Fatalf("stage %d: %+v", i, stage)
			}
		}
		if (s.Violation != "") != (got.Lack > 0) || got.Lack > 0 && s.Violation != fmt.Sprintf("pipeline stage %d needs %v of %v on [d%d]", got.Stage, got.Target, got.Room, got.Stage) {
			rt.Fatalf("violation %q of %+v", s.Violation, got)
		}
	})
}

// TestEngineWithoutStagesSaysNothingOfThem: its state is what it was.
func TestEngineWithoutStagesSaysNothingOfThem(t *testing.T) {
	text, err := json.Marshal(insured(t).Snapshot().Engines[0])
	if err != nil || strings.Contains(string(text), "stage") || strings.Contains(string(text), "violation") {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestSmallestPoolInTokensBoundsTheEngine(t *testing.T) {
	c := EngineConfig{Pool: 640 * mib, BytesPerToken: 64, Stages: []Stage{{BytesPerToken: 64}, {BytesPerToken: 16, Pool: 40 * mib}, {BytesPerToken: 32, Pool: 300 * mib}}}
	if got := c.tightestPool(); got != 160*mib {
		t.Errorf("got %v, want the 160.0MiB that are 40.0MiB on the second stage", got)
	}
}
