package kvbudget

import (
	"fmt"
	"strings"
)

// elementSizes are the bytes of one KV element by the names of config.json and
// of vLLM's --kv-cache-dtype; nvfp4 is 4 bits and an fp8 scale for 16 elements.
var elementSizes = map[string]float64{
	"float32": 4, "fp32": 4, "float16": 2, "half": 2, "fp16": 2, "bfloat16": 2, "bf16": 2,
	"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8_ds_mla": 1, "int8": 1,
	"fp8_per_token_head": 1, "int8_per_token_head": 1, "nvfp4": 0.5 + 1.0/16,
}

// elementBytes is the size of one element: the engine's dtype, else the model's,
// else two bytes, since every server serves a model without one in half
// precision.
func (c modelConfig) elementBytes(kv string) (float64, error) {
	name, field := kv, "kv dtype"
	if name == "" || name == "auto" {
		if name, field = c.TorchDType, "torch_dtype"; name == "" {
			name, field = c.DType, "dtype"
		}
		if name == "" {
			return 2, nil
		}
		if name == "float32" { // served in half precision unless told otherwise
			return 2, nil
		}
	}
	size, ok := elementSizes[name]
	if !ok {
		return 0, fmt.Errorf("%s: %s: got %q, want one such as bfloat16, float16, fp8 or int8; %w", c.name, field, name, ErrByHand)
	}
	return size, nil
}

// kinds is what each layer keeps.
func (c modelConfig) kinds(d Deployment) ([]layerKind, error) {
	n := *c.Layers
	if len(c.LayerTypes) > 0 && len(c.LayerTypes) != n {
		return nil, fmt.Errorf("%s: layer_types: got %d, want num_hidden_layers, %d; %w", c.name, len(c.LayerTypes), n, ErrByHand)
	}
	kinds := make([]layerKind, n)
	windowed := 0
	for i := range kinds {
		var err error
		if kinds[i], err = c.kind(i); err != nil {
			return nil, err
		}
		if kinds[i] != keepsWindow {
			continue
		}
		if windowed++; d.KeepAll {
			kinds[i] = keepsAll
		}
	}
	if n := count(kinds); n[keepsAll]+n[keepsWindow] == 0 {
		return nil, fmt.Errorf("%s: layer_types: got no layer with attention, want one; %w", c.name, ErrByHand)
	}
	if windowed > 0 && (c.Window == nil || *c.Window == 0) {
		return nil, c.missing("sliding_window")
	}
	return kinds, nil
}

// kind is that of layer i.
func (c modelConfig) kind(i int) (layerKind, error) {
	every := func(period int) layerKind { // every period-th layer keeps everything
		if (i+1)%period == 0 {
			return keepsAll
		}
		return keepsWindow
	}
	switch {
	case len(c.LayerTypes) > 0:
		return c.named(i)
	case c.AttnPeriod != nil && *c.AttnPeriod > 1: // Jamba
		offset := 0
		if c.AttnOffset != nil {
			offset = *c.AttnOffset
		}
		if i%*c.AttnPeriod == offset {
			return keepsAll, nil
		}
		return keepsMamba, nil
	case c.FullInterval != nil && *c.FullInterval > 1: // Qwen3-Next
		if every(*c.FullInterval) == keepsAll {
			return keepsAll, nil
		}
		return keepsLinear, nil
	case c.Window == nil || *c.Window == 0 || c.UseWindow != nil && !*c.UseWindow:
		return keepsAll, nil
	case c.Pattern != nil && *c.Pattern > 1:
		return every(*c.Pattern), nil
	case c.UseWindow != nil && c.MaxWindowLayers != nil: // Qwen2: the first ones keep everything
		if i < *c.MaxWindowLayers {
			return keepsAll, nil
		}
	case strings.HasPrefix(c.ModelType, "gemma3"): // its files before layer_types leave the pattern of 6 out
		return every(gemmaPattern), nil
	}
	return keepsWindow, nil // as every layer of Mistral-7B v0.1
}

const gemmaPattern = 6

// named is the kind of layer i by its entry of layer_types.
func (c modelConfig) named(i int) (layerKind, error) {
	switch t := c.LayerTypes[i]; t {
	case "full_attention", "attention", "global":
		return keepsAll, nil
	case "sliding_attention", "chunked_attention", "local":
		return keepsWindow, nil
	case "mamba", "mamba2":
		return keepsMamba, nil
	case "linear_attention":
		return keepsLinear, nil
	default:
		return 0, fmt.Errorf("%s: layer_types[%d]: got %q, want full_attention, sliding_attention, mamba or linear_attention; %w", c.name, i, t, ErrByHand)
	}
}

func (c modelConfig) missing(field string) error {
	return fmt.Errorf("%s: %s: got none in a config of %s, want it to know the KV of a token; %w", c.name, field, c.model(), ErrByHand)
}

func (c modelConfig) bad(field string, got int, want string) error {
	return fmt.Errorf("%s: %s: got %d, want %s; %w", c.name, field, got, want, ErrByHand)
}

// model names the architecture as well as the file does.
func (c modelConfig) model() string {
	switch {
	case len(c.Architectures) > 0 && c.Architectures[0] != "":
		return c.Architectures[0]
	case c.ModelType != "":
		return c.ModelType
	}
	return "an unnamed architecture"
}

func (c modelConfig) source(d Deployment) string {
	s := fmt.Sprintf("%s (%s), tp %d, pp %d, kv dtype ", c.name, c.model(), max(d.TP, 1), max(d.PP, 1))
	switch {
	case d.KVDType != "" && d.KVDType != "auto":
		s += d.KVDType
	case c.TorchDType != "":
		s += c.TorchDType
	case c.DType != "":
		s += c.DType
	default:
		s += "of 2 bytes (none named)"
	}
	return s
}
