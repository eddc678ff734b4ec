package kvbudget

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// Deployment is what the engine's start decides about the layout.
type Deployment struct {
	// TP and PP are the tensor- and pipeline-parallel sizes; 0 counts as 1. The
	// layout is that of the fullest device.
	TP, PP int
	// KVDType is the engine's --kv-cache-dtype; "" and "auto" follow the model.
	KVDType string
	// BlockTokens is the engine's block size; 0 is 16, vLLM's default.
	BlockTokens int
	// KeepAll switches windows off, as an engine does without its hybrid manager.
	KeepAll bool
	// PadGroups pads windowed layers to whole groups of as many layers as keep
	// everything, as vLLM's hybrid manager does.
	PadGroups bool
}

const (
	defaultBlockTokens = 16
	// maxFactor bounds every size in a config and maxPerToken their product, so
	// that bytes stay far below what an int64 holds: no model is near either.
	maxFactor         = 1 << 17
	maxPerToken Bytes = 1 << 30
	// mlaRowBytes is a layer's row under fp8_ds_mla (vLLM): 512 of fp8, 16 of
	// scales, 128 of bf16 rope.
	mlaRowBytes = 656
)

// modelConfig is the part of a Hugging Face config.json that is read.
type modelConfig struct {
	ModelType       string   `json:"model_type"`
	Architectures   []string `json:"architectures"`
	Layers          *int     `json:"num_hidden_layers"`
	Heads           *int     `json:"num_attention_heads"`
	KVHeads         *int     `json:"num_key_value_heads"`
	HeadDim         *int     `json:"head_dim"`
	Hidden          *int     `json:"hidden_size"`
	TorchDType      string   `json:"torch_dtype"`
	DType           string   `json:"dtype"`
	LoraRank        *int     `json:"kv_lora_rank"`
	RopeDim         *int     `json:"qk_rope_head_dim"`
	Window          *int     `json:"sliding_window"`
	UseWindow       *bool    `json:"use_sliding_window"`
	MaxWindowLayers *int     `json:"max_window_layers"`
	LayerTypes      []string `json:"layer_types"`
	Pattern         *int     `json:"sliding_window_pattern"`
	MaxPositions    *int     `json:"max_position_embeddings"`
	stateConfig
	name string
}

// ParseConfig reads the layout from a config.json; name begins its errors. With
// pipeline stages it is that of the fullest device, which ParseStages tells apart.
// Formulas: servers' own (vLLM, v1/kv_cache_interface.py).
func ParseConfig(name string, text []byte, d Deployment) (Layout, error) {
	c, l, element, err := readConfig(name, text, d)
	if err != nil {
		return Layout{}, err
	}
	kinds, err := c.kinds(d)
	if err != nil {
		return Layout{}, err
	}
	l, err = c.layout(l, d, element, kinds, max(d.PP, 1))
	if err != nil {
		return Layout{}, err
	}
	if b := l.PerToken + l.Windowed; b < 1 || b > maxPerToken {
		return Layout{}, fmt.Errorf("%s: bytes per token: got %d, want 1 to %d; %w", name, b, maxPerToken, ErrByHand)
	}
	return l, nil
}

// readConfig is what is known before the layers are counted.
func readConfig(name string, text []byte, d Deployment) (c modelConfig, l Layout, element float64, err error) {
	if c, err = decodeConfig(name, text); err != nil {
		return c, l, 0, err
	}
	if err = c.bound(d); err != nil {
		return c, l, 0, err
	}
	if element, err = c.elementBytes(d.KVDType); err != nil {
		return c, l, 0, err
	}
	l = Layout{BlockTokens: d.BlockTokens, Source: c.source(d)}
	if l.BlockTokens == 0 {
		l.BlockTokens = defaultBlockTokens
	}
	switch {
	case c.Layers == nil:
		return c, l, 0, c.missing("num_hidden_layers")
	case *c.Layers < 1:
		return c, l, 0, c.bad("num_hidden_layers", *c.Layers, "at least 1")
	}
	return c, l, element, nil
}

// layout is that of those layers, spread over so many stages.
func (c modelConfig) layout(l Layout, d Deployment, element float64, kinds []layerKind, pp int) (Layout, error) {
	n := count(kinds)
	var err error
	if c.LoraRank != nil && *c.LoraRank > 0 {
		l, err = c.latent(l, d, element, perStage(n[keepsAll]+n[keepsWindow], pp))
	} else {
		l, err = c.heads(l, d, element, n[keepsAll], n[keepsWindow], pp)
	}
	for _, k := range []layerKind{keepsMamba, keepsLinear} {
		if err != nil || n[k] == 0 {
			continue
		}
		var b Bytes
		b, err = c.stateBytes(k, d.TP, stateElement(c))
		l.State += b * Bytes(perStage(n[k], pp))
		l.Kind = "hybrid"
	}
	return l, err
}

// stateElement is the model's own precision, in which a state is kept whatever the
// KV's dtype is; 2 bytes where it names none that is known.
func stateElement(c modelConfig) float64 {
	if e, err := c.elementBytes(""); err == nil {
		return e
	}
	return 2
}

// decodeConfig looks for the text model of a multimodal config too.
func decodeConfig(name string, text []byte) (modelConfig, error) {
	var outer struct {
		modelConfig
		Text *modelConfig `json:"text_config"`
	}
	if err := json.Unmarshal(text, &outer); err != nil {
		return modelConfig{}, fmt.Errorf("%s: got no config.json: %w; %w", name, err, ErrByHand)
	}
	c := outer.modelConfig
	if c.Layers == nil && outer.Text != nil {
		whole := c
		c = *outer.Text
		if c.TorchDType == "" && c.DType == "" {
			c.TorchDType, c.DType = whole.TorchDType, whole.DType
		}
		if len(c.Architectures) == 0 {
			c.Architectures = whole.Architectures
		}
	}
	c.name = name
	return c, nil
}

// bound refuses sizes that are no sizes.
func (c modelConfig) bound(d Deployment) error {
	for _, f := range []struct {
		field string
		value *int
	}{
		{"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads}, {"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim},
		{"hidden_size", c.Hidden}, {"kv_lora_rank", c.LoraRank}, {"qk_rope_head_dim", c.RopeDim}, {"tp", &d.TP}, {"pp", &d.PP}, {"block_tokens", &d.BlockTokens},
	} {
		if f.value != nil && (*f.value < 0 || *f.value > maxFactor) {
			return c.bad(f.field, *f.value, fmt.Sprintf("0 to %d", maxFactor))
		}
	}
	if c.Window != nil && (*c.Window < 0 || *c.Window > math.MaxInt32) {
		return c.bad("sliding_window", *c.Window, "a number of tokens")
	}
	return nil
}

// latent is MLA: one compressed vector a token and layer, the same on every
// tensor-parallel device.
func (c modelConfig) latent(l Layout, d Deployment, element float64, layers int) (Layout, error) {
	if c.RopeDim == nil {
		return Layout{}, c.missing("qk_rope_head_dim")
	}
	row := Bytes(math.Ceil(float64(*c.LoraRank+*c.RopeDim) * element))
	if d.KVDType == "fp8_ds_mla" {
		row = mlaRowBytes
	}
	l.Kind, l.PerToken = "mla", Bytes(layers)*row
	return l, nil
}

// heads is MHA and GQA, with or without windows.
func (c modelConfig) heads(l Layout, d Deployment, element float64, full, windowed, pp int) (Layout, error) {
	if d.KVDType == "fp8_ds_mla" {
		return Layout{}, fmt.Errorf("%s: kv dtype fp8_ds_mla: got a model without kv_lora_rank, want one with MLA", c.name)
	}
	kv, dim, err := c.headSizes()
	if err != nil {
		return Layout{}, err
	}
	perDevice := max(1, kv/max(d.TP, 1))
	if tp := max(d.TP, 1); kv > tp && kv%tp != 0 {
		perDevice = (kv + tp - 1) / tp
	}
	row := Bytes(math.Ceil(float64(perDevice*2*dim) * element))
	if strings.HasSuffix(d.KVDType, "_per_token_head") {
		row += Bytes(2 * 4 * perDevice) // a float32 scale for each head of K and of V
	}
	l.Kind = "gqa"
	if c.Heads == nil || kv == *c.Heads {
		l.Kind = "mha"
	}
	if d.PadGroups && windowed > 0 && full > 0 {
		windowed = (windowed + full - 1) / full * full
	}
	full, windowed = perStage(full, pp), perStage(windowed, pp)
	l.PerToken = Bytes(full) * row
	if windowed > 0 {
		l.Kind, l.Windowed, l.Window = "sliding", Bytes(windowed)*row, *c.Window
		if full > 0 {
			l.Kind = "hybrid"
		}
	}
	return l, nil
}

// headSizes are the KV heads and the size of one.
func (c modelConfig) headSizes() (kv, dim int, err error) {
	switch {
	case c.KVHeads != nil && *c.KVHeads > 0:
		kv = *c.KVHeads
	case c.Heads != nil && *c.Heads > 0:
		kv = *c.Heads
	default:
		return 0, 0, c.missing("num_key_value_heads (or num_attention_heads)")
	}
	switch {
	case c.HeadDim != nil && *c.HeadDim > 0: // an explicit size wins: Qwen3-32B's is not hidden/heads
		dim = *c.HeadDim
	case c.Hidden == nil:
		return 0, 0, c.missing("head_dim (or hidden_size)")
	case c.Heads == nil || *c.Heads == 0:
		return 0, 0, c.missing("num_attention_heads")
	default:
		dim = *c.Hidden / *c.Heads
	}
	if dim < 1 {
		return 0, 0, c.bad("hidden_size", *c.Hidden, "at least num_attention_heads")
	}
	return kv, dim, nil
}

// perStage is the layers of the fullest pipeline stage.
func perStage(layers, pp int) int { return (layers + max(pp, 1) - 1) / max(pp, 1) }
