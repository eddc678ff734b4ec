package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lull-project/lull/size"
)

const (
	// tritonLoads is the longest that a load may take: weights come from a disk or a
	// network. Shorter takes a large model for one that does not load.
	tritonLoads = 10 * time.Minute
	// tritonLook is how often the index is read while a model comes or goes: Triton
	// answers an unload at once, and waits for what runs.
	tritonLook = 20 * time.Millisecond
)

// tritonModel is one model of a Triton with --model-control-mode=explicit: it takes
// its bytes whole while it is loaded, and requests of it fail while it is not.
type tritonModel struct {
	*client
	slow  *client // for loads
	model Model
	path  string // of the model in the repository
	pool  wholePool
}

var _ Bounder = (*tritonModel)(nil)

func newTritonModel(c Config) *tritonModel {
	patient := c
	patient.Timeout = max(c.Timeout, tritonLoads)
	return &tritonModel{
		client: newClient(c), slow: newClient(patient), model: *c.Model,
		path: "/v2/repository/models/" + url.PathEscape(c.Model.Name), pool: wholePool{now: c.Now},
	}
}

// Capabilities: the whole model or none of it.
func (e *tritonModel) Capabilities() Capabilities {
	return Capabilities{Kind: KindTriton, Bound: true, Reclaim: true, Whole: true, Refuses: true}
}

// Close drops idle connections.
func (e *tritonModel) Close() error { return errors.Join(e.client.Close(), e.slow.Close()) }

// Observe reads whether the model is loaded. One that is coming or going holds all of
// its bytes.
func (e *tritonModel) Observe(ctx context.Context) (Sample, error) { return e.pool.observe(ctx, e) }

// SetBound unloads the model for a bound of 0 and loads it for any other.
func (e *tritonModel) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	return e.pool.order(ctx, e, epoch, b)
}

func (e *tritonModel) look(ctx context.Context) (Sample, error) {
	state, err := e.state(ctx)
	if err != nil {
		return Sample{}, err
	}
	s := Sample{At: e.now(), UsageFrac: -1, Pool: e.model.Bytes, BoundEpoch: e.pool.shown(state == "")}
	if state != "" {
		s.Held, s.Bound, s.Evictable = e.model.Bytes, e.model.Bytes, e.model.Bytes
	}
	if state != "" && state != tritonReady {
		s.Note = fmt.Sprintf("model %s is %s", e.model.Name, state)
	}
	return s, nil
}

func (e *tritonModel) state(ctx context.Context) (string, error) {
	index, err := e.tritonIndex(ctx)
	if statusOf(err) == http.StatusForbidden {
		return "", fmt.Errorf("%w; let Lull use the repository's API (--http-restricted-api), or leave models away", err)
	}
	if err != nil {
		return "", err
	}
	state, err := tritonState(index, e.model.Name)
	if err != nil {
		return "", fmt.Errorf("engine %s: %s%s: %w", e.name, e.base, tritonIndexPath, err)
	}
	return state, nil
}

// tidy and undo: an order that came to nothing leaves nothing behind.
func (e *tritonModel) tidy(context.Context) error { return nil }
func (e *tritonModel) undo(context.Context) error { return nil }

// letGo unloads the model and waits until nothing of it is in memory: Triton first
// ends what runs.
func (e *tritonModel) letGo(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, poolMoves)
	defer stop()
	state, err := e.state(ctx)
	if err != nil || state == "" {
		return err
	}
	if _, err := e.do(ctx, http.MethodPost, e.path+"/unload", nil); err != nil {
		return fmt.Errorf("its model was not unloaded, it stays: %w", explained(err))
	}
	last, err := e.until(ctx, func(state string) bool { return state == "" })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("engine %s: its model was not unloaded, it is still %s; its bytes count as held: %w", e.name, cmp.Or(last, state), err)
	}
	return err
}

// restore loads the model; Triton answers when it is ready. One that is there is not
// loaded again: that would take its bytes twice. One that already comes or goes, by an
// order before Lull started or by somebody else, is waited for.
func (e *tritonModel) restore(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, e.slow.timeout)
	defer stop()
	state, err := e.until(ctx, func(state string) bool { return state == "" || state == tritonReady })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("engine %s: its model did not load, it is still %s: %w", e.name, state, err)
	}
	if err != nil || state == tritonReady {
		return err
	}
	if _, err := e.slow.do(ctx, http.MethodPost, e.path+"/load", nil); err != nil {
		return fmt.Errorf("its model did not load: %w", explained(err))
	}
	return nil
}

// until reads the index until a state of the model is what is waited for, and returns
// the last that was read.
func (e *tritonModel) until(ctx context.Context, done func(state string) bool) (last string, err error) {
	tick := time.NewTicker(tritonLook)
	defer tick.Stop()
	for {
		state, err := e.state(ctx)
		switch {
		case ctx.Err() != nil:
			return last, ctx.Err()
		case err != nil || done(state):
			return state, err
		}
		last = state
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last, ctx.Err()
		}
	}
}

// explained says what to do about a Triton that loads and unloads no models.
func explained(err error) error {
	if strings.Contains(err.Error(), "explicit model load / unload is not allowed") {
		return fmt.Errorf("%w; start Triton with --model-control-mode=explicit", err)
	}
	return err
}
