package faults

import "testing"

func TestErrorComesAfterTheGivenTokens(t *testing.T) {
	got, err := answer(t, "error-after=0")
	if err == nil || err.Error() != "fault: the emulated engine broke down" {
		t.Fatalf("got error %v, want fault: the emulated engine broke down", err)
	}
	if want := "0s start"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
