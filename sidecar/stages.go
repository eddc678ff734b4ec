package sidecar

import (
	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/telemetry"
)

// staged is how an engine's bytes lie on its devices, by lull.yaml.
func staged(c config.Engine) handover.EngineConfig {
	out := handover.EngineConfig{BytesPerToken: c.PerToken()}
	for _, id := range c.Devices {
		out.Devices = append(out.Devices, handover.DeviceID(id))
	}
	for _, s := range c.Stages {
		stage := handover.Stage{BytesPerToken: s.BytesPerToken, Pool: s.Pool}
		for _, id := range s.Devices {
			stage.Devices = append(stage.Devices, handover.DeviceID(id))
		}
		out.Stages = append(out.Stages, stage)
	}
	return out
}

// stages are the pipeline stages of all engines that have some, for /metrics.
func (v *view) stages() []telemetry.Stage {
	var out []telemetry.Stage
	for _, e := range v.ledgerEngines() {
		for _, s := range e.Stages {
			out = append(out, telemetry.Stage{Engine: string(e.ID), Stage: s.Stage, Bytes: map[string]int64{
				"kv_bound": int64(s.Bound), "kv_held": int64(s.Held), "kv_target": int64(s.Target), "kv_lack": int64(s.Lack),
			}})
		}
	}
	return out
}
