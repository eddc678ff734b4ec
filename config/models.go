package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// awaitDefault is how long a request waits for its model where the file says nothing.
// Shorter sends it to a server that must refuse it, longer keeps a client waiting for
// a model that does not load.
const awaitDefault = time.Minute

// longestModel is as much of a model's name as the proxy reads: no request would be
// one of a longer name.
const longestModel = 128

// Awaits is Await with its default.
func (e Engine) Awaits() time.Duration {
	if e.Await > 0 {
		return e.Await
	}
	return awaitDefault
}

// ModelID is the name in the ledger of one of the engine's models.
func (e Engine) ModelID(model string) string { return e.Name + "/" + model }

// room is what a device has without its headroom.
type room struct {
	device string
	bytes  size.Bytes
}

// rooms are those of the engine's devices, without GPUs whose capacity the file leaves to
// NVML.
func (e Engine) rooms(devices []Device) (found []room) {
	for _, d := range devices {
		if d.Capacity > 0 && slices.Contains(e.Devices, d.ID) {
			found = append(found, room{d.ID, d.Capacity - d.Headroom})
		}
	}
	return found
}

// validateRoom looks whether each of the engine's models has room on its devices by
// itself: one that has none can be unloaded and never loaded again.
func (e Engine) validateRoom(key string, devices []Device) error {
	for _, r := range e.rooms(devices) {
		for i, m := range e.Models {
			if m.Bytes > r.bytes {
				return fmt.Errorf("%s.models[%d].bytes: got %v, want at most %v, which %s has without its headroom", key, i, m.Bytes, r.bytes, r.device)
			}
		}
	}
	return nil
}

// validateModels looks at what is only for models.
func (e Engine) validateModels(key string) error {
	const only = "want it beside models only"
	switch {
	case len(e.Models) == 0 && e.Await > 0:
		return fmt.Errorf("%s.await: got %v, %s", key, e.Await, only)
	case len(e.Models) == 0 && e.Warm > 0:
		return fmt.Errorf("%s.warm: got %v, %s", key, e.Warm, only)
	case len(e.Models) == 0:
		return nil
	case e.Kind != engine.KindTriton:
		return fmt.Errorf("%s.models: got some for the kind %s, want them for triton only", key, e.Kind)
	case len(e.Devices) == 0:
		return fmt.Errorf("%s.models: got some of a server on no device, want a device in devices: their bytes are lent there", key)
	case e.Pool > 0:
		return fmt.Errorf("%s.pool: got %v beside models, want none: what a model holds is in its bytes", key, e.Pool)
	case e.MinBound > 0:
		return fmt.Errorf("%s.min_bound: got %v beside models, want none: they go whole or not at all", key, e.MinBound)
	case len(e.Stages) > 0:
		return fmt.Errorf("%s.stages: got some beside models, want none: a model's bytes lie alike on all devices", key)
	}
	seen := map[string]bool{}
	for i, m := range e.Models {
		at := fmt.Sprintf("%s.models[%d]", key, i)
		switch {
		case m.Name == "":
			return fmt.Errorf("%s.name: got \"\", want its name in the model repository", at)
		case len(m.Name) > longestModel:
			return fmt.Errorf("%s.name: got %d bytes, want at most %d: more of it is not read in requests", at, len(m.Name), longestModel)
		case seen[m.Name]:
			return fmt.Errorf("%s.name: got %q again, want each model once", at, m.Name)
		case m.Bytes <= 0:
			return fmt.Errorf("%s.bytes: got %v, want what it takes of each device while it is loaded, such as 12GiB (docs/ENGINES.md says how to measure it)", at, m.Bytes)
		}
		seen[m.Name] = true
	}
	return nil
}

// modelWarnings are of models that do not fit a device together, and of a warm that keeps
// all of them.
func (e Engine) modelWarnings(key string, devices []Device) (found []string) {
	if len(e.Models) == 0 {
		return nil
	}
	all := size.Bytes(0)
	for _, m := range e.Models {
		all += m.Bytes
	}
	for _, r := range e.rooms(devices) {
		if all > r.bytes {
			found = append(found, fmt.Sprintf("%s.models: got %v in all for %s, whose capacity without its headroom is %v: not all can be loaded at once, and idle ones make room for one that is asked for", key, all, r.device, r.bytes))
		}
	}
	if e.Warm >= all {
		found = append(found, fmt.Sprintf("%s.warm: got %v beside models of %v in all, want less: nothing of them is lent, those that fit stay loaded", key, e.Warm, all))
	}
	return found
}
