package kvbudget

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Fields of public config.json files (Hugging Face, by the name given), and by
// hand what their layers with a constant state keep of a request.
const (
	jamba = `{"architectures":["JambaForCausalLM"],"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"torch_dtype":"bfloat16",
		"attn_layer_period":8,"attn_layer_offset":4,"mamba_d_state":16,"mamba_d_conv":4,"mamba_expand":2}` // ai21labs/Jamba-v0.1
	qwen3next = `{"architectures":["Qwen3NextForCausalLM"],"head_dim":256,"hidden_size":2048,"num_attention_heads":16,"num_hidden_layers":48,"num_key_value_heads":2,"torch_dtype":"bfloat16",
		"full_attention_interval":4,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4}` // Qwen/Qwen3-Next-80B-A3B-Instruct
	granite = `{"architectures":["GraniteMoeHybridForCausalLM"],"hidden_size":1536,"num_attention_heads":12,"num_hidden_layers":4,"num_key_value_heads":4,"torch_dtype":"bfloat16",
		"layer_types":["mamba","mamba","mamba","attention"],"mamba_d_state":128,"mamba_d_conv":4,"mamba_n_heads":48,"mamba_d_head":64,"mamba_n_groups":1}` // the fields of Granite 4, four layers of it
)

func TestConstantStateIsCountedOnceARequest(t *testing.T) {
	for name, c := range map[string]struct {
		config          string
		perToken, state Bytes
	}{
		"jamba":      {jamba, 4 * 2 * 8 * 128 * 2, 28 * (8192*3*2 + 8192*16*4)},
		"qwen3-next": {qwen3next, 12 * 2 * 2 * 256 * 2, 36 * (8192*3*2 + 32*128*128*4)},
		"granite":    {granite, 2 * 4 * 128 * 2, 3 * ((48*64+2*128)*3*2 + 48*64*128*4)},
	} {
		l, err := ParseConfig(name, []byte(c.config), Deployment{})
		if err != nil {
			t.Fatal(err)
		}
		if l.PerToken != c.perToken || l.State != c.state || l.Kind != "hybrid" {
			t.Errorf("%s: got %v, %d B of state; want %d B a token and %d", name, l, l.State, c.perToken, c.state)
		}
		if got, want := l.Request(1), c.state+16*c.perToken; got != want {
			t.Errorf("%s: a request of one token takes %v, want %v", name, got, want)
		}
		if l.Request(0) != 0 || !strings.Contains(l.String(), " a request; source: ") {
			t.Errorf("%s: %v, nothing takes %v", name, l, l.Request(0))
		}
		half, err := ParseConfig(name, []byte(c.config), Deployment{TP: 2})
		if err != nil || half.State != c.state/2 {
			t.Errorf("%s on two devices: %d B of state, %v; want half of %d", name, half.State, err, c.state)
		}
	}
}

func TestMissingStateFieldIsNamed(t *testing.T) {
	for field, config := range map[string]string{
		"mamba_d_state": jamba, "mamba_d_conv": jamba, "mamba_expand": jamba, "mamba_d_head": granite, "mamba_n_groups": granite,
		"linear_num_value_heads": qwen3next, "linear_conv_kernel_dim": qwen3next,
	} {
		_, err := ParseConfig("config.json", []byte(strings.Replace(config, `"`+field+`"`, `"x"`, 1)), Deployment{})
		if err == nil || !strings.Contains(err.Error(), "config.json: "+field+": got none in a config of ") || !strings.HasSuffix(err.Error(), ErrByHand.Error()) {
			t.Errorf("without %s: %v", field, err)
		}
	}
	_, err := ParseConfig("config.json", []byte(strings.Replace(granite, `"attention"`, `"conv"`, 1)), Deployment{})
	if err == nil || !strings.Contains(err.Error(), `layer_types[3]: got "conv"`) {
		t.Errorf("a layer of a kind that nobody knows: %v", err)
	}
	huge := strings.NewReplacer(`"mamba_d_state":16`, `"mamba_d_state":131072`, `"mamba_expand":2`, `"mamba_expand":131072`).Replace(jamba)
	if _, err := ParseConfig("config.json", []byte(huge), Deployment{}); err == nil || !strings.Contains(err.Error(), "state of one layer: got ") {
		t.Errorf("a state beyond all devices: %v", err)
	}
}

// TestStagesShareTheLayersAndTheirBytes for any model and any number of stages.
func TestStagesShareTheLayersAndTheirBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.SampledFrom([]string{jamba, qwen3next, granite, models[1].config, models[9].config, models[10].config, models[11].config}).Draw(t, "model"))
		whole, err := ParseConfig("c", text, Deployment{})
		if err != nil {
			t.Fatal(err)
		}
		pp := rapid.IntRange(1, 4).Draw(t, "pp")
		stages, err := ParseStages("c", text, Deployment{PP: pp})
		if err != nil || len(stages) != pp {
			t.Fatalf("%d stages, %v", len(stages), err)
		}
		fullest, err := ParseConfig("c", text, Deployment{PP: pp})
		if err != nil {
			t.Fatal(err)
		}
		tokens := rapid.IntRange(1, 20_000).Draw(t, "tokens")
		var sum Bytes
		for _, l := range stages {
			sum += l.Request(tokens)
		}
		if sum != whole.Request(tokens) {
			t.Fatalf("%d stages hold %d of %d", pp, sum, whole.Request(tokens))
		}
		if s := Fullest(stages, tokens); pp == 1 && stages[s].Request(tokens) != fullest.Request(tokens) {
			t.Fatalf("one stage holds %v, want %v", stages[s].Request(tokens), fullest.Request(tokens))
		}
	})
}

func TestStagesAreCutAsVLLMCutsThem(t *testing.T) {
	for _, c := range []struct {
		layers, pp int
		want       []int // first layers
	}{{32, 4, []int{0, 8, 16, 24}}, {61, 4, []int{0, 15, 30, 46}}, {62, 4, []int{0, 15, 31, 47}}, {7, 2, []int{0, 4}}, {5, 5, []int{0, 1, 2, 3, 4}}} {
		for s, want := range c.want {
			if from, _ := stageOf(c.layers, c.pp, s); from != want {
				t.Errorf("%d layers in %d stages: stage %d begins at %d, want %d", c.layers, c.pp, s, from, want)
			}
		}
		if _, to := stageOf(c.layers, c.pp, c.pp-1); to != c.layers {
			t.Errorf("%d layers in %d stages end at %d", c.layers, c.pp, to)
		}
	}
}

func TestMoreStagesThanLayersAreRefused(t *testing.T) {
	if _, err := ParseStages("c", []byte(granite), Deployment{PP: 5}); err == nil || !strings.Contains(err.Error(), "c: pp: got 5, want at most num_hidden_layers, 4") {
		t.Errorf("more stages than layers: %v", err)
	}
}
