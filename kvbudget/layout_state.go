package kvbudget

import (
	"fmt"
	"math"
)

// recurrentElement is the bytes of one element of a recurrent state: servers keep
// it in the model's precision or in 32 bits, and the larger is never too little.
const recurrentElement = 4

// stateConfig is the part of a config.json that sizes layers whose state does not
// grow with tokens.
type stateConfig struct {
	// Mamba (Jamba, Bamba, Granite 4, Falcon-H1): state space models.
	StateSize *int `json:"mamba_d_state"`
	Conv      *int `json:"mamba_d_conv"`
	Expand    *int `json:"mamba_expand"`
	SSMHeads  *int `json:"mamba_n_heads"`
	SSMHead   *int `json:"mamba_d_head"`
	SSMGroups *int `json:"mamba_n_groups"`
	// Gated delta networks (Qwen3-Next): linear attention.
	LinearKeyHeads   *int `json:"linear_num_key_heads"`
	LinearValueHeads *int `json:"linear_num_value_heads"`
	LinearKeyDim     *int `json:"linear_key_head_dim"`
	LinearValueDim   *int `json:"linear_value_head_dim"`
	LinearConv       *int `json:"linear_conv_kernel_dim"`
	// Every AttnPeriod-th layer from AttnOffset on is attention (Jamba).
	AttnPeriod *int `json:"attn_layer_period"`
	AttnOffset *int `json:"attn_layer_offset"`
	// Every FullInterval-th layer is attention and the others linear (Qwen3-Next).
	FullInterval *int `json:"full_attention_interval"`
}

// stateBytes is what one layer of that kind keeps for a request, on one of tp
// devices: the inputs of its convolution and its recurrent state (shapes as in
// vLLM, model_executor/layers/mamba/mamba_utils.py).
func (c modelConfig) stateBytes(kind layerKind, tp int, element float64) (Bytes, error) {
	var conv, recurrent, err = 0, 0, error(nil)
	switch {
	case kind == keepsLinear:
		conv, recurrent, err = c.deltaShape()
	case c.SSMHeads != nil:
		conv, recurrent, err = c.mamba2Shape()
	default:
		conv, recurrent, err = c.mambaShape()
	}
	if err != nil {
		return 0, err
	}
	each := (float64(conv)*element + float64(recurrent)*recurrentElement) / float64(max(tp, 1))
	if each > float64(maxPerToken) {
		return 0, fmt.Errorf("%s: state of one layer: got %.0f B a request, want at most %d; %w", c.name, each, maxPerToken, ErrByHand)
	}
	return Bytes(math.Ceil(each)), nil
}

// sizes are fields that must all be there; the error names the first that is not.
func (c modelConfig) sizes(names []string, fields ...*int) ([]int, error) {
	out := make([]int, len(fields))
	for i, f := range fields {
		switch {
		case f == nil:
			return nil, c.missing(names[i])
		case *f < 1 || *f > maxFactor:
			return nil, c.bad(names[i], *f, "1 to 131072")
		}
		out[i] = *f
	}
	return out, nil
}

func (c modelConfig) mambaShape() (conv, recurrent int, err error) {
	n, err := c.sizes([]string{"mamba_d_state", "mamba_d_conv", "mamba_expand", "hidden_size"}, c.StateSize, c.Conv, c.Expand, c.Hidden)
	if err != nil {
		return 0, 0, err
	}
	inner := n[2] * n[3]
	return inner * (n[1] - 1), inner * n[0], nil
}

func (c modelConfig) mamba2Shape() (conv, recurrent int, err error) {
	n, err := c.sizes([]string{"mamba_d_state", "mamba_d_conv", "mamba_n_heads", "mamba_d_head", "mamba_n_groups"},
		c.StateSize, c.Conv, c.SSMHeads, c.SSMHead, c.SSMGroups)
	if err != nil {
		return 0, 0, err
	}
	inner := n[2] * n[3]
	return (inner + 2*n[4]*n[0]) * (n[1] - 1), inner * n[0], nil
}

func (c modelConfig) deltaShape() (conv, recurrent int, err error) {
	n, err := c.sizes([]string{"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"},
		c.LinearKeyHeads, c.LinearValueHeads, c.LinearKeyDim, c.LinearValueDim, c.LinearConv)
	if err != nil {
		return 0, 0, err
	}
	return (2*n[0]*n[2] + n[1]*n[3]) * (n[4] - 1), n[1] * n[2] * n[3], nil
}
