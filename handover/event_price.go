package handover

import "time"

// Priced says what training and misses cost from now on. Prices are in any
// currency: only their ratio counts. With Sample or Miss 0 nothing is priced and
// the reserve is Config.Reserve.
type Priced struct {
	At At
	// Sample is the price of one training sample that is not made.
	Sample float64
	// Miss is the price of one request that misses its TTFT objective, where Tiers
	// does not name its tier. The core takes a copy of the map.
	Miss float64
	// Prefill is the price of one second of prefill that a cached prefix saves; 0 and
	// cached prefixes are kept only where nothing else wants their bytes.
	Prefill float64
	Tiers   map[string]float64
}

// ReserveOff begins or ends an interval without a priced reserve, by which the
// shadow ledger is checked.
type ReserveOff struct {
	At  At
	Off bool
}

// TrainerRated is what a trainer says of its speed: the activation bytes that it
// used at its last peak, ascending, and the samples a second that it made. What
// makes no sense is left out.
type TrainerRated struct {
	At      At
	Trainer TrainerID
	Curve   []Rate
	// WorkLost is the training time thrown away or spent twice so far, for shrinks.
	WorkLost time.Duration
}

// Rate is one point of a trainer's speed.
type Rate struct {
	Bytes            Bytes
	SamplesPerSecond float64
}

func (e Priced) when() At       { return e.At }
func (e ReserveOff) when() At   { return e.At }
func (e TrainerRated) when() At { return e.At }
