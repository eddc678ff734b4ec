package handover

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/size"
)

// ReserveState is an engine's reserve and why it is so large. Costs are in the
// currency of the prices; a rate is of a second. Only Bytes and Why are there
// without prices.
type ReserveState struct {
	Bytes Bytes `json:"bytes"`
	// Why is constant, priced, static, no_trainer, unrated, no_promise, no_arrival or off;
	// Reason says it in a sentence.
	Why    string       `json:"why"`
	Reason string       `json:"reason"`
	Priced *PricedState `json:"priced,omitempty"`
}

// PricedState is what a priced reserve was derived from, and what it has cost
// and brought.
type PricedState struct {
	SamplePrice float64 `json:"sample_price"`
	MissPrice   float64 `json:"miss_price"`
	// Premium and Loss are what the reserve and the misses in spite of it cost, Bare
	// what misses would cost without it.
	Premium float64 `json:"premium_per_second"`
	Loss    float64 `json:"loss_per_second"`
	Bare    float64 `json:"loss_without_per_second"`
	// Owing is the share of the time in which a handover is under way, Window how long
	// that one takes and Arrivals how many requests are expected in it.
	Owing    float64       `json:"owing_ratio"`
	Window   time.Duration `json:"window_ns"`
	Arrivals float64       `json:"arrivals_in_window"`
	// Late is the share of requests that a handover would make late if they had to
	// wait for one, Failed the share of handovers that fail.
	Late   float64 `json:"late_ratio"`
	Failed float64 `json:"failed_ratio"`
	// SamplesPerGiB is what training makes of one GiB more, a second.
	SamplesPerGiB float64 `json:"samples_per_gib_second"`
	// ToTraining and ToRequests are the shadow prices: what one GiB more is worth to
	// either, a second.
	ToTraining float64 `json:"gib_to_training_per_second"`
	ToRequests float64 `json:"gib_to_requests_per_second"`
	// ToPrefixes is what one GiB more of cached prefixes saves in prefill, a second;
	// PrefixesKept is what is kept of them because that is worth more than to training,
	// and Prefixes says why in a sentence.
	ToPrefixes   float64 `json:"gib_to_prefixes_per_second"`
	PrefixesKept Bytes   `json:"prefixes_kept_bytes"`
	Prefixes     string  `json:"prefixes"`
	// Patience is how long bytes that the engine does not need now are kept from
	// training, 0 where it is not priced.
	Patience time.Duration `json:"patience_ns"`
	// Lot is what a shrink takes beyond what is needed, so that the next need finds it.
	Lot Bytes `json:"lot_bytes"`
	// A course is one way to lend: how long an excess waits, the lot, and whether there is
	// a reserve. Courses is how many of them are compared in the shadow, 0 while none can
	// be; Course says in words which is followed. CourseCost is what it would have cost a
	// second of late, RentalCost what plain ski rental would have: training displaced,
	// shrinks and expected misses.
	Courses    int     `json:"courses"`
	Course     string  `json:"course"`
	CourseCost float64 `json:"course_cost_per_second"`
	RentalCost float64 `json:"rental_cost_per_second"`
	// Displaced is the training samples that the reserve has cost since the start and
	// Spent their price; Saved is the price of the misses avoided.
	Displaced float64 `json:"samples_displaced"`
	Spent     float64 `json:"spent"`
	Saved     float64 `json:"saved"`
	// Arrivals since the start, those that found room only because of the reserve, and
	// those that found none.
	Arrived uint64 `json:"arrived"`
	Covered uint64 `json:"covered"`
	Short   uint64 `json:"short"`
	// Misses are expected misses for want of room, in spite of the reserve and in the
	// shadow ledger without one.
	Misses       float64 `json:"misses"`
	ShadowMisses float64 `json:"shadow_misses"`
	// With and Without compare times with the reserve and intervals without it.
	With    Interval `json:"with"`
	Without Interval `json:"without"`
}

func (h *Handover) reserveState(e *engine) ReserveState {
	if e.cfg.Fence == FenceStatic {
		return ReserveState{Why: whyStatic, Reason: "this engine's pool does not move: there is nothing to keep or to lend"}
	}
	if !h.priced() {
		return ReserveState{Bytes: h.cfg.Reserve, Why: whyConstant, Reason: "policy.reserve; nothing is priced"}
	}
	in, b := &e.ins, &e.ins.book
	r := ReserveState{
		Bytes: in.reserve, Why: in.why, Reason: in.reason(),
		Priced: &PricedState{
			SamplePrice: h.prices.Sample, MissPrice: h.prices.Miss, Premium: in.premium, Loss: in.loss, Bare: in.bare,
			Owing: in.owing, Window: in.busy.Window, Arrivals: in.busy.Mean, Late: in.toll.Late, Failed: h.times.Failed(),
			SamplesPerGiB: in.perByte * float64(size.GiB), ToTraining: in.toTraining * float64(size.GiB), ToRequests: in.toRequests * float64(size.GiB),
			Patience: in.patience, Displaced: b.samples, Spent: b.spent, Saved: b.saved, Arrived: b.arrivals, Covered: b.covered, Short: b.short,
			Misses: b.misses, ShadowMisses: b.shadowMisses, With: b.intervals[with], Without: b.intervals[without],
		},
	}
	in.showCourse(r.Priced)
	h.showPrefixes(e, r.Priced)
	return r
}

// showCourse says which course is followed, and what it saves.
func (in *insurance) showCourse(p *PricedState) {
	x := in.followed()
	if x == nil {
		p.Course = "none can be judged: no job has told its speed and what its shrinks cost, or a byte more is worth nothing to it"
		return
	}
	c := &in.courses
	p.Courses, p.Lot = len(c.all), x.lot
	if c.weight > 0 {
		p.CourseCost, p.RentalCost = x.cost/c.weight, c.all[0].cost/c.weight
	}
	wait := fmt.Sprintf("%v", x.fixed)
	if x.fixed == 0 {
		wait = fmt.Sprintf("as long as training loses %v shrinks by it", x.rental)
	}
	reserve := "with the priced reserve"
	if x.bare {
		reserve = "without a reserve"
	}
	p.Course = fmt.Sprintf("an excess waits %s, a shrink takes %v more than is needed, %s", wait, x.lot, reserve)
}

// reason says why in a sentence.
func (in *insurance) reason() string {
	switch in.why {
	case whyAlone:
		return "no training is beside this engine: memory that it does not need lies free"
	case whyUnrated:
		return "no job has told yet how its speed depends on memory; policy.reserve holds until then"
	case whyOff:
		return "an interval without a reserve, to check what it brings"
	case whyUnasked:
		return "no request of late was promised a TTFT, so none can miss one"
	case whyNoArrival:
		return "no request has come of late"
	case "":
		return "not priced yet"
	}
	if in.reserve == 0 && in.choice > 0 {
		return fmt.Sprintf("the law would keep %v, but on what came of late lending without a reserve cost less", in.choice)
	}
	if in.reserve == 0 {
		return fmt.Sprintf("misses without a reserve cost %.3g a second; the first quantum of one would save no more than it costs", in.bare)
	}
	return fmt.Sprintf("%v cost %.3g a second in training and bring the price of misses from %.3g a second to %.3g", in.reserve, in.premium, in.bare, in.loss)
}

// showPrefixes says what cached prefixes are worth, and what is kept of them.
func (h *Handover) showPrefixes(e *engine, p *PricedState) {
	x := &e.prefixes
	p.ToPrefixes, p.PrefixesKept = x.perByte*float64(size.GiB), min(x.keep, x.cached)
	switch {
	case h.prices.Prefill <= 0:
		p.Prefixes = "policy.prices.prefill is not set: cached prefixes are kept only where nothing else wants their bytes"
	case !x.heard:
		p.Prefixes = "this engine does not say what its cached prefixes bring"
	case h.prefill <= 0:
		p.Prefixes = "what a token of a prompt takes is not known yet"
	case x.perByte == 0 && x.keep > 0:
		p.Prefixes = "what cached prefixes bring is not known yet: too few tokens were looked up; all are kept meanwhile"
	case x.keep <= 0:
		p.Prefixes = fmt.Sprintf("a GiB of cached prefixes saves %.3g a second, less than the %.3g that it is worth to training", p.ToPrefixes, p.ToTraining)
	default:
		p.Prefixes = fmt.Sprintf("%.0f tokens a second are found cached; the last GiB that is kept saves %.3g a second, to training it is worth %.3g", x.perSecond(x.found), p.ToPrefixes, p.ToTraining)
	}
}
