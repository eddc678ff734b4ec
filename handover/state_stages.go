package handover

import (
	"fmt"
	"slices"
)

// StageState is one pipeline stage of an engine: what the engine's bytes are on each
// of the stage's devices.
type StageState struct {
	Stage         int        `json:"stage"`
	Devices       []DeviceID `json:"devices"`
	BytesPerToken Bytes      `json:"bytes_per_token"`
	Bound         Bytes      `json:"kv_bound_bytes"`
	Held          Bytes      `json:"kv_held_bytes"`
	Target        Bytes      `json:"target_bytes"`
	// Room is the bound that the stage could have without anything from training, Lack
	// what the target needs beyond that: a violation that is predicted, and for which
	// training is asked on the stage's own devices.
	Room Bytes `json:"room_bytes"`
	Lack Bytes `json:"lack_bytes"`
}

// String says what is predicted.
func (s StageState) String() string {
	return fmt.Sprintf("pipeline stage %d needs %v of %v on %v", s.Stage, s.Target, s.Room, s.Devices)
}

// stageStates are the engine's stages in their order, nil where it has none.
func (e *engine) stageStates() []StageState {
	var out []StageState
	for i, c := range e.cfg.Stages {
		s := StageState{Stage: i, Devices: slices.Clone(c.Devices), BytesPerToken: c.BytesPerToken}
		first := true
		for k, d := range e.devices {
			if e.scales[k].stage != i {
				continue
			}
			scaled := e.scales[k].up
			s.Bound, s.Held, s.Target = scaled(e.bound), scaled(e.held), scaled(e.target)
			if room := scaled(e.kv()) + max(0, d.free()); first || room < s.Room {
				s.Room, first = room, false
			}
		}
		s.Lack = max(0, s.Target-s.Room)
		out = append(out, s)
	}
	return out
}

// showStages adds the stages to the engine's state.
func (e *engine) showStages(into *EngineState) {
	if into.Stages = e.stageStates(); into.Stages == nil {
		return
	}
	stage := e.tightest()
	into.Tightest = &stage
	if s := into.Stages[stage]; s.Lack > 0 {
		into.Violation = s.String()
	}
}

// On is what bytes of the engine are on one of its devices, in whole bytes.
func (s EngineState) On(id DeviceID, b Bytes) Bytes {
	var c EngineConfig
	for _, x := range s.Stages {
		c.Stages = append(c.Stages, Stage{Devices: x.Devices, BytesPerToken: x.BytesPerToken})
		c.BytesPerToken = max(c.BytesPerToken, x.BytesPerToken)
	}
	return c.On(id, b)
}
