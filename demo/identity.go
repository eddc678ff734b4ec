package demo

import "slices"

// TokenIdentity compares the greedy answers of the phase lull, token by token,
// with those of the phase inference-only.
type TokenIdentity struct {
	Compared int `json:"compared"`
	Differ   int `json:"differ"`
	// Tokens is how many tokens the compared answers have.
	Tokens int `json:"tokens"`
}

// compareAnswers pairs the whole answers of the two phases by request; nil when
// a phase is missing or the server says no token ids.
func compareAnswers(runs []*phaseRun) *TokenIdentity {
	alone := map[string][]int{}
	var lull *phaseRun
	for _, r := range runs {
		switch r.Phase.Name {
		case InferenceOnly:
			for _, res := range r.Results {
				if res.Err == nil && len(res.IDs) > 0 {
					alone[res.ID] = res.IDs
				}
			}
		case Lull:
			lull = r
		}
	}
	if lull == nil || len(alone) == 0 {
		return nil
	}
	t := &TokenIdentity{}
	for _, res := range lull.Results {
		want, ok := alone[res.ID]
		if !ok || res.Err != nil {
			continue
		}
		t.Compared++
		t.Tokens += len(want)
		if !slices.Equal(res.IDs, want) {
			t.Differ++
		}
	}
	return t
}
