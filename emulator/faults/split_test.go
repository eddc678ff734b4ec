package faults

import "testing"

func TestSplitWritesCutsAnywhere(t *testing.T) {
	got, err := answer(t, "split-writes=3")
	if err != nil {
		t.Fatalf("got error %v, want no error", err)
	}
	if want := "0s start, 0s 1:ab, 0s 2:cd\xc3, 0s 2:\xa9, 0s 3:f, 0s end"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
