package faults

import "testing"

func TestLatencyHoldsTheWholeAnswer(t *testing.T) {
	got, err := answer(t, "latency=20ms")
	if err != nil {
		t.Fatalf("got error %v, want no error", err)
	}
	if want := "20ms start, 20ms 1:ab, 20ms 2:cdé, 20ms 3:f, 20ms end"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestLatencyEndsWhenTheClientLeaves(t *testing.T) {
	got, err := answer(t, "latency=11s")
	if err == nil || err.Error() != "the client left" {
		t.Fatalf("got error %v, want the client left", err)
	}
	if want := ""; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
