package engine

import (
	"context"
	"fmt"

	"github.com/lull-project/lull/size"
)

const ollamaNote = "Ollama loads and unloads models by itself, and its memory moves with them; it says neither how full their KV caches are nor how many requests run"

// ollama is an Ollama: each loaded model has a static context. One reading is GET
// /api/ps.
type ollama struct {
	*client
	cfg Config
}

func newOllama(c Config) *ollama { return &ollama{newClient(c), c} }

// Capabilities: static, and nothing to see of the use.
func (e *ollama) Capabilities() Capabilities { return Capabilities{Kind: KindOllama, Static: true} }

// ollamaModels is the part of GET /api/ps that is read.
type ollamaModels struct {
	Models *[]struct {
		Name    string `json:"name"`
		Size    int64  `json:"size"`
		Context int    `json:"context_length"`
	} `json:"models"`
}

// Observe reads the models that are loaded.
func (e *ollama) Observe(ctx context.Context) (Sample, error) {
	var ps ollamaModels
	if err := e.getJSON(ctx, "/api/ps", &ps); err != nil {
		return Sample{}, err
	}
	if ps.Models == nil {
		return Sample{}, fmt.Errorf("engine %s: %s/api/ps: got no models, want Ollama's list, empty or not", e.name, e.base)
	}
	s := staticSample(e.cfg, e.now())
	loaded := int64(0)
	for _, m := range *ps.Models {
		if m.Size < 0 || m.Size > segmentMost {
			return Sample{}, fmt.Errorf("engine %s: %s/api/ps: got %d bytes for %s, want Ollama's own numbers", e.name, e.base, m.Size, m.Name)
		}
		loaded += m.Size
		s.MaxModelLen = max(s.MaxModelLen, m.Context)
	}
	s.Note = fmt.Sprintf("%s. Loaded now: %d models of %v, weights and KV together", ollamaNote, len(*ps.Models), size.Bytes(loaded))
	return s, nil
}
