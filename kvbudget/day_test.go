package kvbudget

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// dayHorizons is one: a quiet night has many windows of the short ones.
var dayHorizons = []time.Duration{5 * time.Second}

// shifts is a rate with a daily rhythm: half an arrival a second in working hours, and
// a twentieth of it else.
func shifts(ofDay time.Duration) float64 {
	if h := ofDay % (24 * time.Hour) / time.Hour; h >= 9 && h < 12 || h >= 13 && h < 18 {
		return 0.5
	}
	return 0.025
}

// arrivalsOf are arrivals of a rate, Poisson, over so many days.
func arrivalsOf(rate func(time.Duration) float64, days int, seed lcg) (all []time.Duration) {
	const most = 0.5
	for at := time.Duration(0); at < time.Duration(days)*24*time.Hour; {
		at += time.Duration(-math.Log(seed.float()) / most * float64(time.Second))
		if seed.float() < rate(at)/most {
			all = append(all, at)
		}
	}
	return all
}

// forecastLoss is the pinball loss at P95 of the largest need within 5 s, on decisions
// of the third and fourth day that the place says are judged.
func forecastLoss(t *testing.T, arrivals []time.Duration, clock bool, judged func(ofDay time.Duration) bool) float64 {
	f, err := NewForecaster(ForecastConfig{Layout: Layout{PerToken: 64 << 10, BlockTokens: 16}, Horizons: dayHorizons})
	if err != nil {
		t.Fatal(err)
	}
	if clock {
		f.Clock(0, 0)
	}
	const each, stays, look = 100, 20 * time.Second, 5 * time.Second
	var live []*Active
	var ends []time.Duration
	loss, n := 0.0, 0
	one := f.Layout().Request(each)
	for i, at := range arrivals {
		for len(ends) > 0 && ends[0] <= at {
			f.Finish(ends[0], live[0], Usage{OutputTokens: 20})
			live, ends = live[1:], ends[1:]
		}
		ofDay := at % (24 * time.Hour)
		if at >= 48*time.Hour && judged(ofDay) {
			came := f.Need()
			for k := i; k < len(arrivals) && arrivals[k] <= at+look; k++ {
				came += one
			}
			o := f.Outlook(at, 0)
			loss += pinball(float64(o.Quantile(0.95)), float64(came))
			n++
		} else if i%50 == 0 {
			f.Outlook(at, 0)
		}
		live, ends = append(live, f.Arrive(at, Asked{PromptTokens: each})), append(ends, at+stays)
	}
	if n < 200 {
		t.Fatalf("%d decisions judged, want hundreds", n)
	}
	return loss / float64(n)
}

// TestTimeOfDayForetellsTheStepsOfADailyRhythm: in the minutes after a step of the rate
// a forecast that knows the time of day loses less, and elsewhere not more.
func TestTimeOfDayForetellsTheStepsOfADailyRhythm(t *testing.T) {
	arrivals := arrivalsOf(shifts, 4, 5)
	step := func(ofDay time.Duration) bool {
		for _, h := range []time.Duration{9, 12, 13, 18} {
			if d := ofDay - h*time.Hour; d >= 0 && d < 2*time.Minute {
				return true
			}
		}
		return false
	}
	between := func(ofDay time.Duration) bool { return !step(ofDay) && ofDay%(17*time.Second) < time.Second }
	with, without := forecastLoss(t, arrivals, true, step), forecastLoss(t, arrivals, false, step)
	t.Logf("loss at P95 of 5 s in the two minutes after steps: %.0f KiB with the time of day, %.0f without", with/1024, without/1024)
	if with > 0.9*without {
		t.Errorf("loss after steps %.0f with the time of day and %.0f without, want at least a tenth less", with, without)
	}
	with, without = forecastLoss(t, arrivals, true, between), forecastLoss(t, arrivals, false, between)
	t.Logf("elsewhere: %.0f KiB and %.0f", with/1024, without/1024)
	if with > 1.02*without {
		t.Errorf("loss elsewhere %.0f with the time of day and %.0f without, want no more", with, without)
	}
}

// TestTimeOfDaySaysNothingBeforeTwoDays: to the last bit, whatever came.
func TestTimeOfDaySaysNothingBeforeTwoDays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		with, without := NewRates(dayHorizons), NewRates(dayHorizons)
		at := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "start"))
		began := at
		with.Clock(at, time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "of day")))
		rng := lcg(rapid.Uint64().Draw(t, "seed"))
		for range 300 {
			gap := time.Duration(-math.Log(rng.float()) * float64(10*time.Minute))
			if at+gap >= began+daysBefore {
				return
			}
			at += gap
			with.Add(at)
			without.Add(at)
			if a, b := with.Ahead(at, 0, dayHorizons[0]), without.Ahead(at, 0, dayHorizons[0]); a != b {
				t.Fatalf("after %v: %+v with the time of day, %+v without", at-began, a, b)
			}
		}
	})
}

// TestTimeOfDayIsNotBelievedWhereThereIsNoRhythm: nor where arrivals only wander.
func TestTimeOfDayIsNotBelievedWhereThereIsNoRhythm(t *testing.T) {
	drift := lcg(9)
	level, until := 0.1, time.Duration(0)
	wander := func(at time.Duration) float64 {
		for ; until < at; until += quarter {
			level = min(max(level*math.Exp(drift.float()-0.5), 0.02), 0.5)
		}
		return level
	}
	for name, rate := range map[string]func(time.Duration) float64{
		"steady": func(time.Duration) float64 { return 0.1 }, "wandering": wander,
	} {
		r := NewRates(dayHorizons)
		r.Clock(0, 0)
		for _, at := range arrivalsOf(rate, 6, 3) {
			if r.Add(at); r.day.factor != 1 {
				t.Errorf("%s arrivals: after %v the quarter counts %.2f of the mean, want 1", name, at, r.day.factor)
				break
			}
		}
	}
}

// TestQuartersOfTheDayAreMeansOfTheirDays: against a plain sum, and a clock that is set
// drops only the quarter under way.
func TestQuartersOfTheDayAreMeansOfTheirDays(t *testing.T) {
	d := newDay()
	d.set(0, 23*time.Hour+50*time.Minute)
	if d.now != 95 || d.ends != 10*time.Minute {
		t.Fatalf("23:50 is quarter %d that ends in %v, want 95 and 10m", d.now, d.ends)
	}
	d.count = 99
	d.turn() // it was not seen whole
	for day := range 3 {
		for q := range quarters {
			d.count = float64(100*(1+q%2) + 10*day)
			d.turn()
		}
	}
	if d.seen[95] >= d.seen[0]+1e-9 || math.Abs(d.arrivals[1]/d.seen[1]-d.arrivals[0]/d.seen[0]-100) > 1e-9 {
		t.Errorf("%v of %v quarters, and %v of %v", d.arrivals[0], d.seen[0], d.arrivals[1], d.seen[1])
	}
	if f := d.of(1); f < 1.2 || f > 1.35 {
		t.Errorf("a quarter of 200 beside one of 100 counts %.2f of the mean, want nearly 4/3", f)
	}
	before := d.arrivals
	d.count = 1000
	d.set(d.ends-quarter+time.Minute, time.Hour+time.Minute)
	if d.turn(); d.arrivals != before || d.now != 5 {
		t.Errorf("a quarter that was not seen whole was learned from, or %d follows 01:00", d.now)
	}
}

// TestNoClockMakesNonsenseOfTheTimeOfDay: clocks are set back and forth, summer ends,
// machines sleep.
func TestNoClockMakesNonsenseOfTheTimeOfDay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRates([]time.Duration{time.Second})
		hours := rapid.SampledFrom([]time.Duration{0, time.Second, 15 * time.Minute, time.Hour, 25 * time.Hour, 90 * time.Hour})
		at := time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			switch at += hours.Draw(t, "later"); rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				r.Clock(at, hours.Draw(t, "of day")-hours.Draw(t, "less"))
			case 1:
				r.Add(at)
				if rapid.Bool().Draw(t, "refused") {
					r.Remove(at)
				}
			default:
				r.advance(at)
			}
			d := &r.day
			if f := d.ahead(at, time.Second); !(f >= 1/mostDayFactor && f <= mostDayFactor) {
				t.Fatalf("at %v a quarter counts %v times", at, f)
			}
			if d.told && (d.ends <= at || d.ends > at+quarter || d.now < 0 || d.now >= quarters || d.count < 0) {
				t.Fatalf("at %v: quarter %d with %v arrivals ends at %v", at, d.now, d.count, d.ends)
			}
		}
	})
}
