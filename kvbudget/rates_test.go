package kvbudget

import (
	"math"
	"testing"
	"time"
)

// lcg is a small deterministic source for tests.
type lcg uint64

func (r *lcg) float() float64 {
	*r = *r*6364136223846793005 + 1442695040888963407
	return (float64(*r>>11) + 0.5) / (1 << 53)
}

var testHorizons = []time.Duration{100 * ms, time.Second, 5 * time.Second}

func TestCountsAddUpToOne(t *testing.T) {
	r := NewRates(testHorizons)
	rng := lcg(3)
	at := time.Duration(0)
	for range 500 {
		at += time.Duration(-math.Log(rng.float()) * float64(150*ms))
		r.Add(at)
	}
	for i := range testHorizons {
		c := ahead(r, at, i)
		sum, mean := c.Tail, c.Tail*c.TailMean
		for k, p := range c.P {
			sum, mean = sum+p, mean+p*float64(k)
		}
		if math.Abs(sum-1) > 1e-6 || math.Abs(mean-c.Mean) > 1e-3*c.Mean+1e-6 {
			t.Errorf("horizon %v: probabilities add up to %v, mean %v, want 1 and %v", testHorizons[i], sum, mean, c.Mean)
		}
	}
}

func TestSteadyArrivalsAreNearPoisson(t *testing.T) {
	r := NewRates(testHorizons)
	rng := lcg(1)
	at := time.Duration(0)
	for at < 300*time.Second {
		at += time.Duration(-math.Log(rng.float()) * float64(200*ms))
		r.Add(at)
	}
	c := ahead(r, at, 1)
	if c.Mean < 4 || c.Mean > 6.2 || c.Var > 2*c.Mean {
		t.Errorf("5 arrivals a second are predicted as %v ± var %v in 1 s", c.Mean, c.Var)
	}
}

func TestBurstsWidenTheCounts(t *testing.T) {
	r := NewRates(testHorizons)
	for i := range 60 { // 20 at once, every 4 s
		for range 20 {
			r.Add(time.Duration(i) * 4 * time.Second)
		}
	}
	c := ahead(r, 60*4*time.Second, 1)
	if c.Var < 4*c.Mean || c.P[0] < 0.15 {
		t.Errorf("bursts of 20 every 4 s are predicted as %v, variance %v, none with probability %v", c.Mean, c.Var, c.P[0])
	}
}

func TestNothingIsExpectedBeforeTheFirstArrivalAndLittleAfterAPause(t *testing.T) {
	r := NewRates(testHorizons)
	if c := ahead(r, time.Hour, 0); c.P[0] != 1 || c.Mean != 0 {
		t.Errorf("before the first arrival: %+v", c)
	}
	for i := range 100 {
		r.Add(time.Duration(i) * 100 * ms)
	}
	if c := ahead(r, time.Hour, 1); c.Mean > 0.2 || math.IsNaN(c.Var) {
		t.Errorf("after an hour without arrivals: %+v", c)
	}
}

func TestBurstIsARateFarAboveTheMinutes(t *testing.T) {
	r := NewRates(testHorizons)
	at := time.Duration(0)
	for range 100 {
		at += time.Second
		r.Add(at)
	}
	if r.burst(at) {
		t.Error("steady arrivals are called a burst")
	}
	for range 30 {
		at += 20 * ms
		r.Add(at)
	}
	if !r.burst(at) {
		t.Error("50 arrivals a second after one a second are no burst")
	}
}

func TestNegativeBinomialTermsAreItsProbabilities(t *testing.T) {
	law := countLaw{mean: 2.5, size: 1.7}
	var c Counts
	law.add(&c, 1)
	for k, p := range c.P {
		if want := math.Exp(law.log(k)); math.Abs(p-want) > 1e-9 {
			t.Errorf("P(%d) = %v by recursion, %v by its formula", k, p, want)
		}
	}
}

// ahead looks one of testHorizons ahead.
func ahead(r *Rates, at time.Duration, i int) Counts { return r.Ahead(at, i, testHorizons[i]) }

// TestShortHorizonHasItsShareOfTheArrivals: whatever windows the experts are
// judged by.
func TestShortHorizonHasItsShareOfTheArrivals(t *testing.T) {
	r := NewRates([]time.Duration{10 * ms})
	at := time.Duration(0)
	rng := lcg(3)
	for range 4000 {
		at += time.Duration(-math.Log(rng.float()) * float64(50*ms))
		r.Add(at)
	}
	short, long := r.Ahead(at, 0, 10*ms), r.Ahead(at, 0, 100*ms)
	if short.Mean < 0.15 || short.Mean > 0.25 || math.Abs(long.Mean-10*short.Mean) > 1e-9 {
		t.Errorf("20/s: %v expected within 10ms, %v within 100ms", short.Mean, long.Mean)
	}
}

// TestFirstArrivalIsNoInfiniteRate: one request says little of how many follow.
func TestFirstArrivalIsNoInfiniteRate(t *testing.T) {
	r := NewRates([]time.Duration{10 * ms})
	r.Add(0)
	if c := r.Ahead(0, 0, 10*ms); c.Mean > 0.03 {
		t.Errorf("%v arrivals expected within 10ms of the first", c.Mean)
	}
}
