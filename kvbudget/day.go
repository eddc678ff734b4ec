package kvbudget

import (
	"math"
	"time"
)

const (
	// A day is divided into quarters of an hour.
	quarter  = 15 * time.Minute
	quarters = int(24 * time.Hour / quarter)
	// daysBefore is how long arrivals must have been seen before the time of day says
	// anything.
	daysBefore = 48 * time.Hour
	// dayMemory is what a day counts for after one more.
	dayMemory = 0.7
	// typicalArrivals are as many that a quarter's own must outweigh, and mostDayFactor
	// is how far a quarter may be from the mean.
	typicalArrivals, mostDayFactor = 8.0, 32.0
	// dayTrust is by how much the rate of a quarter must have been foretold better from
	// the one before with the time of day than without, over about a day.
	dayTrust, dayScores = 0.9, 1 - 1.0/96
)

// day is how much more or less arrives in each quarter hour of the day than on the
// mean of the day, learned over days. It says 1 before two days were seen, and
// wherever it has not foretold quarters better than "as the last". Its memory is
// constant, and it reads no clock: who tells the time of day calls set.
type day struct {
	told     bool
	midnight time.Duration // an offset at which a day began
	since    time.Duration // first look at the day
	now      int           // the quarter under way
	ends     time.Duration
	whole    bool // it was seen from its beginning
	count    float64
	last     float64 // count of the quarter before, below 0 unknown

	arrivals, seen [quarters]float64
	mine, flat     float64 // discounted errors of the logarithm of a quarter's count
	factor         float64 // of the quarter under way
	next           float64 // of the one after
}

func newDay() day { return day{factor: 1, next: 1} }

// set says that it was so late in the day at a time. What was counted of the quarter
// under way is of no use if that is news.
func (d *day) set(at, ofDay time.Duration) {
	if !d.told {
		d.since = at
	}
	d.told, d.midnight, d.whole, d.count, d.last = true, at-ofDay, false, 0, -1
	d.begin(at)
}

// begin makes the quarter of a time the one under way.
func (d *day) begin(at time.Duration) {
	into := (at - d.midnight) % (24 * time.Hour)
	if into < 0 {
		into += 24 * time.Hour
	}
	d.now = int(into / quarter)
	d.ends = at + quarter - into%quarter
}

// take takes back an arrival of that time.
func (d *day) take(at time.Duration) {
	if at >= d.ends-quarter && d.count > 0 {
		d.count--
	}
}

// turn ends the quarter under way.
func (d *day) turn() {
	if d.whole {
		d.judge()
		d.arrivals[d.now] = d.arrivals[d.now]*dayMemory + d.count
		d.seen[d.now] = d.seen[d.now]*dayMemory + 1
		d.last = d.count
	}
	at := d.ends
	d.whole, d.count = true, 0
	d.begin(at)
	d.factor, d.next = 1, 1
	if at-d.since >= daysBefore && d.mine < dayTrust*d.flat {
		d.factor, d.next = d.of(d.now), d.of((d.now+1)%quarters)
	}
}

// judge compares what the time of day would have said of the quarter that ends, by
// the one before, with "as many".
func (d *day) judge() {
	before := (d.now + quarters - 1) % quarters
	if d.last < 0 || d.seen[d.now] == 0 || d.seen[before] == 0 {
		return
	}
	came := math.Log((d.count + 1) / (d.last + 1))
	said := math.Log(d.of(d.now) / d.of(before))
	d.mine = d.mine*dayScores + math.Abs(came-said)
	d.flat = d.flat*dayScores + math.Abs(came)
}

// of is a quarter's factor, drawn towards 1 where few have arrived.
func (d *day) of(q int) float64 {
	arrivals, seen := 0.0, 0.0
	for i := range d.seen {
		arrivals, seen = arrivals+d.arrivals[i], seen+d.seen[i]
	}
	if d.seen[q] == 0 {
		return 1
	}
	f := (d.arrivals[q]/d.seen[q] + typicalArrivals) / (arrivals/seen + typicalArrivals)
	return min(max(f, 1/mostDayFactor), mostDayFactor)
}

// ahead is the mean factor from a time on.
func (d *day) ahead(at, window time.Duration) float64 {
	if d.factor == d.next || at+window <= d.ends {
		return d.factor
	}
	after := min((at+window-max(at, d.ends)).Seconds()/window.Seconds(), 1)
	return d.factor + (d.next-d.factor)*after
}
