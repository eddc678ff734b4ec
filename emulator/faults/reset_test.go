package faults

import "testing"

func TestResetComesAfterTheGivenTokens(t *testing.T) {
	got, err := answer(t, "reset-after=1")
	if err == nil || err.Error() != "fault: reset the connection" {
		t.Fatalf("got error %v, want fault: reset the connection", err)
	}
	if want := "0s start, 0s 1:ab"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
