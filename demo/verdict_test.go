package demo

import (
	"testing"

	"github.com/lull-project/lull/size"
)

const m = size.MiB

func order(millis float64, epoch uint64, bytes size.Bytes, shrink bool) sidecarEvent {
	return sidecarEvent{T: unixUS(millis), Kind: "order", Epoch: epoch, Bytes: int64(bytes), Shrink: shrink}
}

func ack(millis float64, epoch uint64, held size.Bytes, how string) sidecarEvent {
	return sidecarEvent{T: unixUS(millis), Kind: "ack", Epoch: epoch, Bytes: int64(held), How: how}
}

func TestShrinkCountsFromItsAckAndGrantFromItsOrder(t *testing.T) {
	c := buildCeilings([]sidecarEvent{
		order(0, 1, 300*m, false), ack(1, 1, 300*m, "nothing"),
		order(100, 2, 200*m, true), ack(104, 2, 150*m, "drop"),
		order(200, 3, 260*m, false),
	})
	for _, tc := range []struct {
		from, to float64
		want     size.Bytes
		ok       bool
	}{
		{-2, -1, 0, false},          // before the first order nothing was promised
		{50, 50.1, 300 * m, true},   // the grant
		{102, 102.1, 300 * m, true}, // ordered, not promised yet
		{103.9, 104.1, 300 * m, true},
		{104.1, 104.2, 200 * m, true}, // promised
		{199.9, 200.1, 260 * m, true}, // a grant may be used while the sample is read
		{500, 501, 260 * m, true},
	} {
		got, ok := c.highest(at(tc.from), at(tc.to))
		if ok != tc.ok || size.Bytes(got.Bytes) != tc.want {
			t.Errorf("[%v, %v] ms: got %v %v, want %v %v", tc.from, tc.to, size.Bytes(got.Bytes), ok, tc.want, tc.ok)
		}
	}
}

func TestLateOrSupersededAcksPromiseNothing(t *testing.T) {
	c := buildCeilings([]sidecarEvent{
		order(0, 1, 300*m, false),
		order(10, 2, 200*m, true), order(11, 3, 100*m, true),
		ack(12, 2, 0, "superseded"), ack(13, 3, 90*m, "drop"),
		order(20, 4, 300*m, false), ack(21, 3, 0, "drop"),
		order(30, 5, 10*m, true), ack(31, 5, 40*m, "suspend"),
	})
	for millis, want := range map[float64]size.Bytes{12.5: 300 * m, 15: 100 * m, 22: 300 * m, 32: 40 * m} {
		if got, _ := c.highest(at(millis), at(millis)); size.Bytes(got.Bytes) != want {
			t.Errorf("at %v ms: got %v, want %v", millis, size.Bytes(got.Bytes), want)
		}
	}
}

func TestSamplesAboveAPromiseAreViolationsAndRebounds(t *testing.T) {
	c := buildCeilings([]sidecarEvent{order(0, 1, 300*m, false), order(100, 2, 200*m, true), ack(104, 2, 200*m, "drop")})
	d := yardstick{Capacity: 1000 * m, EngineBaseline: 10 * m, TrainerBaseline: 20 * m, Floor: 50 * m}
	samples := []rawSample{
		raw(50, 410*m, 370*m),    // 400 + 350: at the grant
		raw(103, 410*m, 370*m),   // not promised yet
		raw(105, 410*m, 270*m),   // 250 = floor + 200
		raw(106, 410*m, 270*m+1), // one byte above
		raw(107, 410*m, 280*m),
		{At: at(108), From: at(108), To: at(108), Engine: 410 * m, Engine2: 411 * m, Trainer: 900 * m}, // the engine moved
	}
	v := judge(samples, 0, d, c)
	if len(v.Violations) != 2 || v.Rebounds != 1 || v.Discarded != 1 || len(v.Samples) != 5 {
		t.Fatalf("got %d violations, %d rebounds, %d discarded, %d counted, want 2, 1, 1, 5", len(v.Violations), v.Rebounds, v.Discarded, len(v.Samples))
	}
	if got := v.Violations[0]; got.What != "ceiling" || got.Epoch != 2 || got.Got != 250*m+1 || got.Limit != 250*m {
		t.Errorf("violation: got %+v, want 250 MiB and one byte above the promise of epoch 2", got)
	}
	if v.MaxDevice != 750*m {
		t.Errorf("most on the device: got %v, want 750 MiB", v.MaxDevice)
	}
	if got := v.heldMean(d, at(104), at(107)); got != float64(610*m+1)/3 {
		t.Errorf("held mean: got %v", got)
	}
}

func TestCeilingMeanIsWeightedByTime(t *testing.T) {
	c := buildCeilings([]sidecarEvent{order(-50, 1, 400*m, false), order(50, 2, 200*m, true), ack(75, 2, 200*m, "drop")})
	if got, want := c.mean(at(0), at(100)), float64(350*m); got != want {
		t.Errorf("got %v, want %v", size.Bytes(got), size.Bytes(want))
	}
	if got := c.mean(at(0), at(0)); got != 0 {
		t.Errorf("empty window: got %v, want 0", got)
	}
}
