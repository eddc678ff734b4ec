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

// split counts the layers that keep every token and those that keep a window.
// Layers of other kinds (state-space, linear attention) hold no KV a token.
func (c modelConfig) split(d Deployment) (full, windowed int, err error) {
	n := *c.Layers
	if len(c.LayerTypes) > 0 && len(c.LayerTypes) != n {
		return 0, 0, fmt.Errorf("%s: layer_types: got %d, want num_hidden_layers, %d; %w", c.name, len(c.LayerTypes), n, ErrByHand)
	}
	switch {
	case len(c.LayerTypes) > 0:
		full, windowed, err = c.byType()
	case c.Window == nil || *c.Window == 0 || c.UseWindow != nil && !*c.UseWindow:
		return n, 0, nil
	case c.Pattern != nil && *c.Pattern > 1: // every pattern-th layer keeps everything
		full = n / *c.Pattern
		windowed = n - full
	case c.UseWindow != nil && c.MaxWindowLayers != nil: // Qwen2: the first ones keep everything
		full = min(max(*c.MaxWindowLayers, 0), n)
		windowed = n - full
	case strings.HasPrefix(c.ModelType, "gemma3"): // its files before layer_types leave the pattern of 6 out
		full = n / gemmaPattern
		windowed = n - full
	default: // every layer, as Mistral-7B v0.1
		windowed = n
	}
	if err != nil {
		return 0, 0, err
	}
	if windowed > 0 && (c.Window == nil || *c.Window == 0) {
		return 0, 0, c.missing("sliding_window")
	}
	if d.KeepAll {
		return full + windowed, 0, nil
	}
	return full, windowed, nil
}

const gemmaPattern = 6

// byType counts the entries of layer_types.
func (c modelConfig) byType() (full, windowed int, err error) {
	for i, t := range c.LayerTypes {
		switch t {
		case "full_attention", "attention", "global":
			full++
		case "sliding_attention", "chunked_attention", "local":
			windowed++
		case "linear_attention", "mamba", "mamba2", "recurrent", "conv":
		default:
			return 0, 0, fmt.Errorf("%s: layer_types[%d]: got %q, want full_attention, sliding_attention or linear_attention; %w", c.name, i, t, ErrByHand)
		}
	}
	if full+windowed == 0 {
		return 0, 0, fmt.Errorf("%s: layer_types: got no layer with attention, want one; %w", c.name, ErrByHand)
	}
	return full, windowed, nil
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
