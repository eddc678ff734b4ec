package config

import (
	"fmt"
	"slices"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// PerToken is bytes_per_token, or that of the fullest stage where there are stages; 0
// leaves it to the server.
func (e Engine) PerToken() size.Bytes {
	b := e.BytesPerToken
	for _, s := range e.Stages {
		b = max(b, s.BytesPerToken)
	}
	return b
}

// validateStages names the first thing wrong with an engine's pipeline stages.
func (e Engine) validateStages(key string) error {
	if len(e.Stages) == 0 {
		return nil
	}
	placed, fullest := map[string]bool{}, size.Bytes(0)
	for i, s := range e.Stages {
		at := fmt.Sprintf("%s.stages[%d]", key, i)
		if len(s.Devices) == 0 {
			return fmt.Errorf("%s.devices: got none, want at least one of %s.devices", at, key)
		}
		for _, id := range s.Devices {
			if placed[id] || !slices.Contains(e.Devices, id) {
				return fmt.Errorf("%s.devices: got %q, want devices of %s.devices, each in one stage", at, id, key)
			}
			placed[id] = true
		}
		if s.BytesPerToken <= 0 {
			return fmt.Errorf("%s.bytes_per_token: got %v, want what a token takes there (lull forecast --geometry config.json --pp N says it)", at, s.BytesPerToken)
		}
		fullest = max(fullest, s.BytesPerToken)
	}
	for _, id := range e.Devices {
		if !placed[id] {
			return fmt.Errorf("%s.stages: got none with %q, want each of %s.devices in one", key, id, key)
		}
	}
	if e.BytesPerToken != 0 && e.BytesPerToken != fullest {
		return fmt.Errorf("%s.bytes_per_token: got %v beside stages, want 0 or that of the fullest, %v", key, e.BytesPerToken, fullest)
	}
	return nil
}

// stageWarnings are of stages that nothing is lent by.
func (e Engine) stageWarnings(key string) []string {
	if len(e.Stages) == 0 {
		return nil
	}
	why := ""
	switch e.Kind {
	case engine.KindAuto, engine.KindEmulator, engine.KindKvcached, engine.KindVLLMSleep:
		return nil
	case engine.KindLullVLLM:
		why = "whose plugin bounds no server of several pipeline stages (docs/VLLM.md)"
	default:
		why = "whose pool does not move"
	}
	return []string{fmt.Sprintf("%s.stages: got some for the kind %s, %s: they say what each device holds, and no KV of it is lent", key, e.Kind, why)}
}
