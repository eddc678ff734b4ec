package handover

import (
	"fmt"
	"math/bits"
	"slices"
)

// Pipeline stages. An engine may cut its layers into stages that are not alike: a
// token is in each of them and takes another number of bytes in each. All bytes of
// such an engine (pool, bound, held, needs, targets) are those of its fullest stage,
// as bytes per token are; what they are on a device follows from the stage that it
// holds. So demand is one number, a bound means as many tokens everywhere, and every
// device is planned in its own bytes: it asks its own trainers for what its stage
// lacks, and the stage where fewest tokens more fit decides how far a bound rises.

// Stage is one pipeline stage of an engine.
type Stage struct {
	// Devices hold its layers, all alike (tensor-parallel ranks): devices of the engine,
	// each in one stage.
	Devices []DeviceID
	// BytesPerToken is what a token takes on each of them.
	BytesPerToken Bytes
	// Pool, when above 0, is the most KV that each of them may hold. The stage whose
	// pool has fewest tokens bounds them all.
	Pool Bytes
}

// StageID names a stage, from 0; without an engine it names none.
type StageID struct {
	Engine EngineID
	Stage  int
}

// String is "engine/stage", and empty for none.
func (s StageID) String() string {
	if s.Engine == "" {
		return ""
	}
	return fmt.Sprintf("%s/%d", s.Engine, s.Stage)
}

// scale is a device's bytes for those of the engine's fullest stage: part of whole,
// at most 1.
type scale struct {
	stage       int
	part, whole Bytes
}

// up is what b bytes of the fullest stage are on the device, rounded up.
func (s scale) up(b Bytes) Bytes { return mulDiv(b, s.part, s.whole, true) }

// fit is the most bytes of the fullest stage that are no more than b on the device.
func (s scale) fit(b Bytes) Bytes { return mulDiv(b, s.whole, s.part, false) }

// freeing is the least fall, in bytes of the fullest stage, after which the device has
// b more.
func (s scale) freeing(b Bytes) Bytes { return mulDiv(b, s.whole, s.part, true) }

// vast is more than any device has, and little enough to be added to.
const vast = 1 << 61

// mulDiv is b·by/over without overflow on the way, at most vast.
func mulDiv(b, by, over Bytes, up bool) Bytes {
	if by == over {
		return b
	}
	if b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(b), uint64(by))
	if hi >= uint64(over) {
		return vast
	}
	q, rest := bits.Div64(hi, lo, uint64(over))
	if up && rest > 0 {
		q++
	}
	return Bytes(min(q, vast))
}

// scaleOf is that of a device; without stages all of the engine's are alike.
func (c EngineConfig) scaleOf(id DeviceID) scale {
	for i, s := range c.Stages {
		if slices.Contains(s.Devices, id) {
			return scale{stage: i, part: s.BytesPerToken, whole: c.BytesPerToken}
		}
	}
	return scale{part: 1, whole: 1}
}

// On is what bytes of the engine, which are those of its fullest stage, are on one of
// its devices.
func (c EngineConfig) On(id DeviceID, b Bytes) Bytes { return c.scaleOf(id).up(b) }

// tightestPool is the pool as the stage with the fewest tokens has it.
func (c EngineConfig) tightestPool() Bytes {
	pool := c.Pool
	for _, s := range c.Stages {
		if s.Pool > 0 {
			pool = min(pool, scale{part: s.BytesPerToken, whole: c.BytesPerToken}.fit(s.Pool))
		}
	}
	return pool
}

// validateStages names the first thing wrong with an engine's stages.
func (c EngineConfig) validateStages() error {
	if len(c.Stages) == 0 {
		return nil
	}
	placed, fullest := map[DeviceID]bool{}, Bytes(0)
	for i, s := range c.Stages {
		key := fmt.Sprintf("engines.%s.stages[%d]", c.ID, i)
		switch {
		case len(s.Devices) == 0:
			return fmt.Errorf("%s.devices: got none, want at least one", key)
		case s.BytesPerToken <= 0:
			return fmt.Errorf("%s.bytes_per_token: got %v, want more than 0: a stage without KV has no place here", key, s.BytesPerToken)
		case s.Pool < 0:
			return fmt.Errorf("%s.pool: got %v, want 0 (what the engine's pool takes there) or more", key, s.Pool)
		}
		for _, d := range s.Devices {
			if placed[d] || !slices.Contains(c.Devices, d) {
				return fmt.Errorf("%s.devices: got %q, want devices of the engine, each in one stage", key, d)
			}
			placed[d] = true
		}
		fullest = max(fullest, s.BytesPerToken)
	}
	for _, d := range c.Devices {
		if !placed[d] {
			return fmt.Errorf("engines.%s.stages: %q is in none, want each of the engine's devices in one", c.ID, d)
		}
	}
	if c.BytesPerToken != fullest {
		return fmt.Errorf("engines.%s.bytes_per_token: got %v, want that of the fullest stage, %v", c.ID, c.BytesPerToken, fullest)
	}
	return nil
}

// scaleOn is that of one of the engine's devices.
func (e *engine) scaleOn(d *device) scale {
	for i, x := range e.devices {
		if x == d {
			return e.scales[i]
		}
	}
	return scale{part: 1, whole: 1}
}

// on is what bytes of the engine are on one of its devices.
func (e *engine) on(d *device, b Bytes) Bytes { return e.scaleOn(d).up(b) }

// tightest is the stage where fewest tokens more fit without anything from training,
// the first of equals.
func (e *engine) tightest() (stage int) {
	var room Bytes
	for i, d := range e.devices {
		s := e.scales[i]
		if r := s.fit(s.up(e.kv()) + max(0, d.free())); i == 0 || r < room {
			stage, room = s.stage, r
		}
	}
	return stage
}

// tightestID names it; none where the engine has no stages.
func (e *engine) tightestID() StageID {
	if len(e.cfg.Stages) == 0 {
		return StageID{}
	}
	return StageID{Engine: e.cfg.ID, Stage: e.tightest()}
}

// shortStage is the stage on the device whose target lacks most beyond its bound; none
// where nothing lacks or the engine that lacks most has no stages.
func (d *device) shortStage() (id StageID) {
	most := Bytes(0)
	for _, e := range d.engines {
		s := e.scaleOn(d)
		lack := s.up(e.target) - s.up(e.kv())
		if !e.fenced || lack <= most {
			continue
		}
		most, id = lack, StageID{}
		if len(e.cfg.Stages) > 0 {
			id = StageID{Engine: e.cfg.ID, Stage: s.stage}
		}
	}
	return id
}

// reach works out how much of the engine's target and of its live requests' need its
// bound can come to cover with all that training may give, on the tightest of its
// devices: what lies beyond is asked back on no device, since it would help nobody.
func (h *Handover) reach(e *engine) {
	e.reachable, e.reachableMust = e.target, e.must()
	if len(e.devices) == 1 {
		return
	}
	insured := e.target
	for i, d := range e.devices {
		s := e.scales[i]
		above, below := d.spare()
		have := s.up(e.kv()) + d.free() + d.coming() + above
		insured, e.reachableMust = min(insured, s.fit(have)), min(e.reachableMust, s.fit(have+below))
	}
	e.reachable = min(e.target, max(insured, e.reachableMust))
}

// spare is what the device's trainers may give: above their min budgets, and below
// them by suspension.
func (d *device) spare() (above, below Bytes) {
	for _, t := range d.trainers {
		if t.orderable() {
			above += max(0, t.planned()-t.minBudget)
			below += max(0, min(t.planned(), t.minBudget)-t.least)
		}
	}
	return above, below
}
