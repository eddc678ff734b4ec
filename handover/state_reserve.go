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
	// Patience is how long bytes that the engine does not need now are kept from
	// training, 0 where it is not priced.
	Patience time.Duration `json:"patience_ns"`
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
	return ReserveState{
		Bytes: in.reserve, Why: in.why, Reason: in.reason(),
		Priced: &PricedState{
			SamplePrice: h.prices.Sample, MissPrice: h.prices.Miss, Premium: in.premium, Loss: in.loss, Bare: in.bare,
			Owing: in.owing, Window: in.busy.Window, Arrivals: in.busy.Mean, Late: in.toll.Late, Failed: h.times.Failed(),
			SamplesPerGiB: in.perByte * float64(size.GiB), ToTraining: in.toTraining * float64(size.GiB), ToRequests: in.toRequests * float64(size.GiB),
			Patience: in.patience, Displaced: b.samples, Spent: b.spent, Saved: b.saved, Arrived: b.arrivals, Covered: b.covered, Short: b.short,
			Misses: b.misses, ShadowMisses: b.shadowMisses, With: b.intervals[with], Without: b.intervals[without],
		},
	}
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
	if in.reserve == 0 {
		return fmt.Sprintf("misses without a reserve cost %.3g a second; the first quantum of one would cost more than it saves", in.bare)
	}
	return fmt.Sprintf("%v cost %.3g a second in training and bring the price of misses from %.3g a second to %.3g", in.reserve, in.premium, in.bare, in.loss)
}
