package sidecar

import (
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/trainer"
)

// monday is at eight in the morning, in Kolkata.
var monday = time.Date(2026, time.June, 1, 2, 30, 0, 0, time.UTC)

func byDay() config.Prices {
	return config.Prices{
		PriceList: config.PriceList{Sample: 1, Miss: 2, Tiers: []config.TierPrice{{Name: "gold", Miss: 3}}},
		Hours:     []config.PriceHours{{Hours: "09:00-18:00", PriceList: config.PriceList{Sample: 4, Miss: 5}}},
	}
}

func kolkata(t *testing.T) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestPricesAreToldWhenTheirHourComes(t *testing.T) {
	p := newPricing(byDay(), kolkata(t), nil)
	night := handover.Priced{Sample: 1, Miss: 2, Tiers: map[string]float64{"gold": 3}}
	day := handover.Priced{Sample: 4, Miss: 5, Tiers: map[string]float64{}}
	for _, c := range []struct {
		at   time.Duration
		want []handover.Event
	}{
		{0, []handover.Event{night}},
		{time.Second, nil},
		{time.Hour - time.Second, nil},
		{time.Hour, []handover.Event{day}},
		{time.Hour + time.Minute, nil},
	} {
		got := p.news(c.at, monday.Add(c.at))
		for i, e := range got {
			told := e.(handover.Priced)
			if told.At != c.at {
				t.Errorf("%v: told for %v", c.at, told.At)
			}
			told.At = 0
			got[i] = told
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: got %+v, want %+v", c.at, got, c.want)
		}
	}
	p.set(config.Prices{}, time.UTC)
	if got := p.news(3*time.Hour, monday); !reflect.DeepEqual(got, []handover.Event{handover.Priced{At: 3 * time.Hour, Tiers: map[string]float64{}}}) {
		t.Errorf("after a reload without prices: %+v, want that nothing is priced", got)
	}
	if got := p.news(4*time.Hour, monday); got != nil {
		t.Errorf("then %+v, want nothing", got)
	}
}

func TestNothingIsSaidWithoutPrices(t *testing.T) {
	p := newPricing(config.Default().Policy.Prices, time.UTC, nil)
	for at := time.Duration(0); at < time.Minute; at += time.Second {
		if got := p.news(at, monday.Add(at)); got != nil {
			t.Fatalf("%v: %+v", at, got)
		}
	}
}

func TestIntervalsWithoutAReserveHaveTheirShareOfTheTime(t *testing.T) {
	c := byDay()
	c.OffShare, c.OffFor = 0.2, 2*time.Second
	turn := 0.0
	p := newPricing(c, time.UTC, func() float64 { turn += 0.618034; turn -= float64(int(turn)); return turn })
	off, is, starts := time.Duration(0), false, 0
	const step, length = 10 * time.Millisecond, 4 * time.Hour
	for at := time.Duration(0); at < length; at += step {
		for _, e := range p.news(at, monday) {
			if e, ok := e.(handover.ReserveOff); ok {
				is = e.Off
				if is {
					starts++
				}
			}
		}
		if is {
			off += step
		}
	}
	if share := off.Seconds() / length.Seconds(); share < 0.19 || share > 0.21 || starts < 1000 {
		t.Errorf("off for %.3f of the time in %d intervals, want a fifth of it", share, starts)
	}
	for !p.off {
		p.news(p.turnAt, monday)
	}
	p.set(config.Prices{}, time.UTC)
	if got := p.news(length, monday); len(got) != 2 || got[1] != (handover.ReserveOff{At: length}) {
		t.Errorf("after a reload without prices: %+v, want the interval to end", got)
	}
}

func TestReportIsRatedByItsCurveAndItsLostWork(t *testing.T) {
	r := trainer.Report{RateCurve: []trainer.RatePoint{{Bytes: 7, SamplesPerSec: 8}}, WorkLostSampleSeconds: 1.5}
	want := handover.TrainerRated{At: 1, Trainer: "t", Curve: []handover.Rate{{Bytes: 7, SamplesPerSecond: 8}}, WorkLost: 1500 * msec}
	if got := ratedEvent(1, "t", r); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for said, want := range map[float64]time.Duration{-5: 0, 1e300: mostLost} {
		r.WorkLostSampleSeconds = said
		if got := ratedEvent(1, "t", r).(handover.TrainerRated).WorkLost; got != want {
			t.Errorf("%v s lost: %v, want %v", said, got, want)
		}
	}
}

// TestReserveIsPricedByWhatTheTrainerReports: from lull.yaml and a report's rate
// curve to the state and the metrics, and back to the constant by a reload.
func TestReserveIsPricedByWhatTheTrainerReports(t *testing.T) {
	r := newRig(t, func(f *config.File) { f.Policy.Prices.Sample, f.Policy.Prices.Miss = 0.001, 0.5 })
	reserve := func() handover.ReserveState { return r.state().Ledger.Engines[0].Reserve }
	r.until("nobody to keep memory from", func() bool { return reserve().Why == "no_trainer" })
	c := r.hello("priced", "host0", os.Getpid(), 0, 256<<20, 0)
	r.until("its speed is not known", func() bool { return reserve().Why == "unrated" })
	c.say(`{"type":"report","bytes":{},"samples":7,"step":1,"microbatch":1,"microbatch_ms":1,"batch_ms":1,"rate_curve":[[16777216,20],[335544320,40]]}`)
	r.until("its speed is known", func() bool { return reserve().Why == "no_arrival" })
	r.mustAllBeWhole([]answer{r.chat(20, 3)})
	r.until("the reserve is priced", func() bool {
		s := reserve()
		return s.Why == "priced" && s.Priced.SamplePrice == 0.001 && s.Priced.Arrived == 1 && s.Priced.SamplesPerGiB > 0
	})
	if !r.metric(`lull_reserve_arrivals_total{engine="main",room="free"} 1`) || !r.metric(`lull_reserve_expected_misses_total{engine="main",reserve="none"} 0`) {
		t.Error("the metrics do not show it")
	}
	next := r.file
	next.Policy.Prices = config.Prices{OffFor: next.Policy.Prices.OffFor}
	changed, restart, err := r.sidecar.Reload(next)
	if err != nil || len(changed) != 2 || len(restart) > 0 {
		t.Fatalf("reload: changed %v, restart %v, %v", changed, restart, err)
	}
	r.until("the constant is back", func() bool { return reserve().Why == "constant" && reserve().Priced == nil })
}

// TestPrefillIsToldOnlyWhereItHasAPrice: once a second, from what requests took.
func TestPrefillIsToldOnlyWhereItHasAPrice(t *testing.T) {
	s := &score{}
	for i := range 40 {
		s.prefill.Learn(100+50*(i%7), time.Duration(100+50*(i%7))*time.Millisecond)
	}
	p := newPricing(config.Prices{PriceList: config.PriceList{Sample: 1, Miss: 2}}, time.UTC, nil)
	p.news(0, monday)
	if _, due := p.prefill(time.Second, s); due {
		t.Error("told without a price of prefill")
	}
	p.set(config.Prices{PriceList: config.PriceList{Sample: 1, Miss: 2, Prefill: 3}}, time.UTC)
	if got := p.news(2*time.Second, monday); len(got) != 1 || got[0].(handover.Priced).Prefill != 3 {
		t.Errorf("told %+v, want the new price", got)
	}
	took, due := p.prefill(2*time.Second, s)
	if !due || took < 990*time.Microsecond || took > 1010*time.Microsecond {
		t.Errorf("%v, %v: want 1ms a token", took, due)
	}
	if _, due := p.prefill(2*time.Second+pricesEvery/2, s); due {
		t.Error("told again within the second")
	}
}
