package model

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Curve is a fitted time in milliseconds: A + B·x + C·y, where the meaning of x
// and y depends on the phase (see Coefficients).
type Curve struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
	C float64 `json:"c"`
}

// Coefficients give the time of one forward pass on one GPU.
type Coefficients struct {
	// Prefill: A + B·n + C·n² for n prompt tokens.
	Prefill Curve `json:"prefill_ms"`
	// Decode: A + B·sequences + C·(KV tokens of all of them).
	Decode Curve `json:"decode_ms"`
	// KVBytesPerToken is what one token takes on the model that was measured.
	KVBytesPerToken int64 `json:"kv_bytes_per_token"`
}

// Batch is what one forward pass computes.
type Batch struct {
	// PrefillTokens are the prompt tokens of all chunks.
	PrefillTokens int
	// PrefillQuad is Σ (end² − start²) over the chunks, in tokens²: summed over
	// the chunks of one prompt it gives n², so that cutting a prompt into chunks
	// does not change what attention costs.
	PrefillQuad float64
	// DecodeSeqs are the sequences that compute one token each.
	DecodeSeqs int
	// DecodeTokens are the KV tokens that those sequences read.
	DecodeTokens int
}

// Time is how long the pass takes. A pure prefill or a pure decode takes what its
// fit says. A mixed pass reads the weights once and multiplies all its tokens by
// them in one go, so its linear part is the greater of the two (a roofline:
// reading weights, or computing), with decoding sequences counted as tokens of
// the chunk; attention is paid by both.
func (c Coefficients) Time(b Batch) time.Duration {
	decode := c.Decode.A + c.Decode.B*float64(b.DecodeSeqs)
	decodeAttention := c.Decode.C * float64(b.DecodeTokens)
	prefill := c.Prefill.A + c.Prefill.B*float64(b.PrefillTokens+b.DecodeSeqs)
	prefillAttention := c.Prefill.C * b.PrefillQuad
	var ms float64
	switch {
	case b.PrefillTokens == 0 && b.DecodeSeqs == 0:
		return 0
	case b.PrefillTokens == 0:
		ms = decode + decodeAttention
	case b.DecodeSeqs == 0:
		ms = prefill + prefillAttention
	default:
		ms = math.Max(decode, prefill) + decodeAttention + prefillAttention
	}
	return time.Duration(ms * float64(time.Millisecond))
}

//go:embed calibration/coefficients.json
var calibrationJSON []byte

// Calibration returns the coefficients of a GPU and model by name, such as
// "a100|Llama-2-13B". Their source is in calibration/NOTICE.
func Calibration(name string) (Coefficients, error) {
	all, err := calibrations()
	if err != nil {
		return Coefficients{}, err
	}
	c, ok := all[name]
	if !ok {
		return Coefficients{}, fmt.Errorf("calibration %q: not known, want one of %s", name, strings.Join(Calibrations(), ", "))
	}
	return c, nil
}

// Calibrations lists the known names in order.
func Calibrations() []string {
	all, err := calibrations()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func calibrations() (map[string]Coefficients, error) {
	var all map[string]Coefficients
	if err := json.Unmarshal(calibrationJSON, &all); err != nil {
		return nil, fmt.Errorf("calibration: read the embedded coefficients: %w", err)
	}
	return all, nil
}
