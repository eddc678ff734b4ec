package faults

import "testing"

func TestNoFaultPassesEverythingOn(t *testing.T) {
	got, err := answer(t, "noop")
	if err != nil {
		t.Fatalf("got error %v, want no error", err)
	}
	if want := "0s start, 0s 1:ab, 0s 2:cdé, 0s 3:f, 0s end"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
