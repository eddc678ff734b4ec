package faults

import "testing"

func TestStallSendsNoMoreAndEndsWhenTheClientLeaves(t *testing.T) {
	got, err := answer(t, "stall-after=2")
	if err == nil || err.Error() != "the client left" {
		t.Fatalf("got error %v, want the client left", err)
	}
	if want := "0s start, 0s 1:ab, 0s 2:cdé"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
