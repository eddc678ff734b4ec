package handover

import (
	"math"
	"testing"
	"time"
)

// TestByteIsWorthLessToTrainingThatStandsStillPartOfTheTime by the mean share of late,
// and what it was where nobody paces.
func TestByteIsWorthLessToTrainingThatStandsStillPartOfTheTime(t *testing.T) {
	worth := func(events ...Event) float64 {
		h := insured(t)
		h.Step(rated(h.now))
		h.Step(Arrived{At: h.now, ID: "a", Engine: "llm", NeedBytes: mib, Promised: true})
		for _, e := range events {
			h.Step(e)
		}
		h.Step(Tick{At: time.Hour})
		if got := h.Snapshot().TrainingShare; len(events) == 0 && got != 1 {
			t.Errorf("a share of %v where nobody paces, want 1", got)
		}
		return h.only().Priced.ToTraining
	}
	all := worth()
	if half := worth(TrainingShare{At: 2 * time.Second, Duty: 0.5}); !(math.Abs(half-all/2) <= all*1e-9) || all <= 0 {
		t.Errorf("an hour at half of the time: a GiB is worth %v, want half of %v", half, all)
	}
	if again := worth(TrainingShare{At: 2 * time.Second, Duty: math.NaN()}, TrainingShare{At: 3 * time.Second, Duty: -1}, TrainingShare{At: 3*time.Second + 1, Duty: math.NaN()}, TrainingShare{At: 4 * time.Second, Duty: 7}); !(math.Abs(again-all) <= all*1e-9) {
		t.Errorf("an hour at all of it again: %v, want %v", again, all)
	}
}

// TestTrainingSpeedIsThatOfTheBudgets: at the devices' whole time.
func TestTrainingSpeedIsThatOfTheBudgets(t *testing.T) {
	h := insured(t)
	if got := h.TrainingSpeed(); got != 0 {
		t.Errorf("before any word: %v", got)
	}
	h.Step(rated(h.now))
	h.Step(TrainingShare{At: h.now, Duty: 0.5})
	want := 20 + 20*float64(h.trainers[0].budget-64*mib)/float64(576*mib)
	if got := h.TrainingSpeed(); math.Abs(got-want) > 1e-9 {
		t.Errorf("got %v, want %v", got, want)
	}
}
