package slo

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPressureIsThePartOfTheObjectiveThatIsUsedUp(t *testing.T) {
	p := Promise{TTFT: Line{Base: 100 * ms, PerToken: ms}, TBT: 80 * ms} // 200 ms for 100 tokens
	for _, c := range []struct {
		since, prefill, silence time.Duration
		started                 bool
		want                    float64
	}{
		{0, 50 * ms, 0, false, 0.25},       // just arrived: its prefill is still to come
		{100 * ms, 50 * ms, 0, false, 0.5}, // waiting for longer than its prefill should take
		{400 * ms, 50 * ms, 0, false, 2},   // too late
		{400 * ms, 50 * ms, 20 * ms, true, 0.25},
		{400 * ms, 50 * ms, 0, true, 0},
	} {
		if got := p.Pressure(100, c.since, c.prefill, c.silence, c.started); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("Pressure(%v, %v, %v, %v) = %v, want %v", c.since, c.prefill, c.silence, c.started, got, c.want)
		}
	}
	if got := (Promise{}).Pressure(9, time.Hour, 0, time.Hour, true); got != 0 {
		t.Errorf("without an objective: got %v, want 0", got)
	}
}

func TestTrainingStopsUnderPressureAndGoesOnWhenItIsGone(t *testing.T) {
	y := DefaultYielder()
	for i, c := range []struct {
		pressure float64
		want     bool
	}{{0.25, false}, {0.49, false}, {0.5, true}, {0.4, true}, {0.34, true}, {0.33, false}, {0.4, false}, {9, true}, {0, false}} {
		if got := y.Step(time.Duration(i)*ms, c.pressure); got != c.want {
			t.Errorf("step %d, pressure %v: got %v, want %v", i, c.pressure, got, c.want)
		}
	}
}

// TestYieldingNeverFlipsInsideItsBand drives random pressures: between Off and On
// the answer stays.
func TestYieldingNeverFlipsInsideItsBand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := DefaultYielder()
		was := false
		for i, p := range rapid.SliceOfN(rapid.Float64Range(0, 2), 1, 50).Draw(t, "pressures") {
			got := y.Step(time.Duration(i)*ms, p)
			if p > y.Off && p < y.On && got != was {
				t.Fatalf("flipped to %v at %v", got, p)
			}
			was = got
		}
	})
}

func TestTrainingKeepsItsFloorUnderPressureThatDoesNotEnd(t *testing.T) {
	y := DefaultYielder()
	free := 0
	for i := range 6000 { // a minute in steps of 10 ms
		if !y.Step(time.Duration(i)*10*ms, 3) {
			free++
		}
	}
	if share := float64(free) / 6000; share < y.Floor || share > 2*y.Floor {
		t.Errorf("training had %.3f of the time, want its floor %.2f, at most twice that", share, y.Floor)
	}
	for i := range 100 {
		if y.Step(time.Minute+time.Duration(i)*10*ms, 0.1) {
			t.Fatal("yields without pressure")
		}
	}
	if !y.Step(2*time.Minute, 0.6) {
		t.Error("after a long calm: want to yield at once")
	}
}

// limit is the TBT limit of the simulated requests.
const limit = 80 * ms

// plant is a server whose mean gap rises with the duty of training beside it.
type plant struct {
	idle  time.Duration // gap without training
	slope float64       // added at full duty, as a part of idle
	noise float64       // relative
	rng   *rand.Rand
}

func (p plant) gap(duty float64) time.Duration {
	g := float64(p.idle) * (1 + p.slope*duty)
	return time.Duration(g * (1 + p.noise*(2*p.rng.Float64()-1)))
}

// settle runs the loop against a plant; duties are those after each step. The
// gaps of an interval were made under the duty of the interval before: one
// interval of delay.
func settle(p *Pacer, from time.Duration, pl plant, steps int) (duties []float64, last time.Duration) {
	duty, before := p.Step(from, 1), 1.0
	for i := range steps {
		for range 16 {
			p.Gap(pl.gap(before), limit)
		}
		before = duty
		last = from + time.Duration(i+1)*p.Every
		duty = p.Step(last, 1)
		duties = append(duties, duty)
	}
	return duties, last
}

// TestPaceSettlesWithinTwoSecondsAfterAStepAndDoesNotSwing steps the server's own
// speed and the training's weight up and down. From two seconds after a step the
// duty stays where it is, and on its way it goes past its rest point by little.
func TestPaceSettlesWithinTwoSecondsAfterAStepAndDoesNotSwing(t *testing.T) {
	for _, c := range []struct {
		name        string
		idle        time.Duration
		slope, rest float64 // rest: the duty at which the mean gap is 0.7 of 80 ms
	}{
		{"a light server", 20 * ms, 1, 1},
		{"training doubles the gap", 40 * ms, 1, 0.4},
		{"training trebles the gap", 28 * ms, 2, 0.5},
		{"a heavy server", 50 * ms, 1, 0.12},
		{"too slow by itself", 70 * ms, 1, 0.05},
	} {
		p := DefaultPacer()
		rng := rand.New(rand.NewPCG(1, 1))
		_, at := settle(&p, 0, plant{20 * ms, 0, 0, rng}, 20) // full speed before the step
		duties, _ := settle(&p, at, plant{c.idle, c.slope, 0, rng}, 60)
		for i, d := range duties[20:] {
			if math.Abs(d-c.rest) > 0.05 {
				t.Errorf("%s: step %d: duty %.3f, want %.2f within 0.05 from 2 s on", c.name, 20+i, d, c.rest)
				break
			}
		}
		for i, d := range duties {
			if d < c.rest-0.1 {
				t.Errorf("%s: step %d: duty %.3f swung below %.2f", c.name, i, d, c.rest)
				break
			}
		}
	}
}

func TestPaceUnderNoiseStaysNearItsRestPoint(t *testing.T) {
	p := DefaultPacer()
	duties, _ := settle(&p, 0, plant{40 * ms, 1, 0.5, rand.New(rand.NewPCG(2, 3))}, 500)
	sum := 0.0
	for _, d := range duties[30:] {
		sum += d
		if math.Abs(d-0.4) > 0.25 {
			t.Fatalf("duty %.2f, want 0.4 within 0.25 under 50 %% noise of a gap", d)
		}
	}
	if mean := sum / float64(len(duties)-30); math.Abs(mean-0.4) > 0.03 {
		t.Errorf("mean duty %.3f, want 0.40", mean)
	}
}

func TestTrainingHasTheDeviceToItselfWithoutRequests(t *testing.T) {
	p := DefaultPacer()
	duties, at := settle(&p, 0, plant{70 * ms, 1, 0, rand.New(rand.NewPCG(1, 1))}, 60)
	if d := duties[len(duties)-1]; d != p.Floor {
		t.Fatalf("under overload: duty %v, want the floor %v", d, p.Floor)
	}
	if d := p.Step(at+ms, 0); d != 1 {
		t.Errorf("without requests: duty %v, want 1 at once", d)
	}
	p.Gap(time.Hour, 0)
	if d := p.Step(at+time.Second, 1); d != 1 {
		t.Errorf("after a gap that nothing limits: duty %v, want 1", d)
	}
}

func TestAnIntervalWithoutAGapChangesNothing(t *testing.T) {
	p := DefaultPacer()
	p.Step(0, 1)
	p.Gap(160*ms, limit)
	before := p.Step(100*ms, 1)
	if after := p.Step(200*ms, 1); before >= 1 || after != before {
		t.Errorf("got %v then %v, want less than 1 and the same", before, after)
	}
}
