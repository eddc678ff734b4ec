package faults

import "testing"

func TestFaultsAreAppliedInTheOrderGiven(t *testing.T) {
	got, err := answer(t, " latency=5ms, split-writes=1 ,reset-after=2")
	if want := "5ms start, 5ms 1:a, 5ms 1:b, 5ms 2:c, 5ms 2:d, 5ms 2:\xc3, 5ms 2:\xa9"; got != want || err != ErrReset {
		t.Fatalf("got %q and %v, want %q and %v", got, err, want, ErrReset)
	}
}

func TestNoTextIsNoFault(t *testing.T) {
	if set, err := Parse(""); len(set) != 0 || err != nil {
		t.Fatalf("got %d faults and %v", len(set), err)
	}
}

func TestParseErrorsNameTheFaultAndTheRule(t *testing.T) {
	for text, want := range map[string]string{
		"latency=fast":       `fault "latency=fast": got "fast", want a duration of 0 or more, such as 20ms`,
		"slow-close=-1s":     `fault "slow-close=-1s": got "-1s", want a duration of 0 or more, such as 20ms`,
		"noop=1,stall-after": `fault "stall-after": got "", want a whole number of at least 0`,
		"split-writes=0":     `fault "split-writes=0": got "0", want a whole number of at least 1`,
		"slow=1":             `fault "slow=1": not known, want one of latency=DURATION, stall-after=TOKENS, reset-after=TOKENS, error-after=TOKENS, split-writes=BYTES, slow-close=DURATION, noop=ANYTHING`,
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add("latency=20ms,stall-after=3")
	f.Add(",=,split-writes=1")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Parse(text)
		if err != nil && set != nil {
			t.Fatalf("%q: both a set and %v", text, err)
		}
		set.Wrap(&record{})
	})
}
