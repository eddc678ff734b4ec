package faults

import "testing"

func TestSlowCloseWaitsAfterTheLastByte(t *testing.T) {
	got, err := answer(t, "slow-close=1s")
	if err != nil {
		t.Fatalf("got error %v, want no error", err)
	}
	if want := "0s start, 0s 1:ab, 0s 2:cdé, 0s 3:f, 1s end"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestSlowCloseEndsWhenTheClientLeaves(t *testing.T) {
	got, err := answer(t, "slow-close=11s")
	if err == nil || err.Error() != "the client left" {
		t.Fatalf("got error %v, want the client left", err)
	}
	if want := "0s start, 0s 1:ab, 0s 2:cdé, 0s 3:f"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
