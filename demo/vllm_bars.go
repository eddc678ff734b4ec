package demo

import "fmt"

// vllmHandovers is how many handovers each direction must have at least.
const vllmHandovers = 30

// vllmBars are what is promised of the demo with a real vLLM: memory that really
// changes hands and answers that do not change. Attainment is reported, not
// promised: one core computes for the server, the sidecar and the load.
func vllmBars(s Summary) []Bar {
	h := s.Handover
	list := []Bar{
		atLeast("shrinks that freed memory", float64(h.ShrinksFreed), vllmHandovers, count),
		atLeast("grows", float64(h.Grows), vllmHandovers, count),
		none("audit violations", s.Audit.Violations),
	}
	same := Bar{Name: "answers token-identical to inference only", Want: "all"}
	switch t := s.TokenIdentity; {
	case t == nil:
		same.Skipped = InferenceOnly
	default:
		same.Got = fmt.Sprintf("%d of %d (%d tokens)", t.Compared-t.Differ, t.Compared, t.Tokens)
		same.Met = t.Differ == 0 && t.Compared > 0
		if !same.Met {
			same.Short = fmt.Sprint(t.Differ)
		}
	}
	return append(list, same, errorsBar(s))
}

// errorsBar: no request fails in the phase lull.
func errorsBar(s Summary) Bar {
	lull, _ := s.phase(Lull)
	return none("requests that failed", lull.Errors)
}
