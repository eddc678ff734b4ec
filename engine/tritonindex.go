package engine

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// The states of a model's versions in Triton's index
// (docs/protocol/extension_model_repository.md). One that was never loaded has none,
// one that is gone is UNAVAILABLE.
const (
	tritonIndexPath = "/v2/repository/index"
	tritonReady     = "READY"
	tritonLoading   = "LOADING"
	tritonUnloading = "UNLOADING"
)

// tritonVersion is one entry of the index.
type tritonVersion struct{ Name, Version, State, Reason string }

// tritonIndex asks what of the model repository is loaded. The question is a POST all
// the same; servers may restrict it.
func (c *client) tritonIndex(ctx context.Context) (index []tritonVersion, err error) {
	a, err := c.do(ctx, http.MethodPost, tritonIndexPath, []byte("{}"))
	if err == nil {
		err = c.decode(tritonIndexPath, a.body, &index)
	}
	return index, err
}

// tritonState is what of a model is there: READY where a version serves, LOADING or
// UNLOADING where none does and one moves, empty where nothing of it is in memory.
func tritonState(index []tritonVersion, model string) (string, error) {
	state, names := "", []string(nil)
	known := false
	for _, v := range index {
		if names = append(names, v.Name); v.Name != model {
			continue
		}
		known = true
		switch v.State {
		case tritonReady:
			return tritonReady, nil
		case tritonLoading, tritonUnloading:
			state = v.State
		}
	}
	if !known {
		return "", fmt.Errorf("got no model %q in its repository, want one of %q", model, slices.Compact(names))
	}
	return state, nil
}
