package kvbudget

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// models are the fields of each model's public config.json (Hugging Face, by the
// name given) that decide its KV, and what vLLM's formulas make of them in 16
// bits on one device; 8k is a request of 8,192 tokens in blocks of 16.
var models = []struct {
	name, config             string
	kind                     string
	perToken, windowed, at8k Bytes
	window                   int
	perTokenFP8, keepingAll  Bytes
	perTokenTP8              Bytes
}{
	{
		"meta-llama/Llama-2-13b-hf", `{"architectures":["LlamaForCausalLM"],"hidden_size":5120,"num_attention_heads":40,"num_hidden_layers":40,"num_key_value_heads":40,"torch_dtype":"float16"}`,
		"mha", 819_200, 0, 6400 << 20, 0, 409_600, 819_200, 102_400,
	},
	{
		"meta-llama/Meta-Llama-3-8B", `{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"torch_dtype":"bfloat16"}`,
		"gqa", 131_072, 0, 1 << 30, 0, 65_536, 131_072, 16_384,
	},
	{
		"mistralai/Mistral-7B-v0.1", `{"architectures":["MistralForCausalLM"],"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"sliding_window":4096,"torch_dtype":"bfloat16"}`,
		"sliding", 0, 131_072, 512 << 20, 4096, 0, 131_072, 0,
	},
	{
		"mistralai/Mistral-7B-v0.2", `{"architectures":["MistralForCausalLM"],"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"sliding_window":null,"torch_dtype":"bfloat16"}`,
		"gqa", 131_072, 0, 1 << 30, 0, 65_536, 131_072, 16_384,
	},
	{
		"meta-llama/Meta-Llama-3-70B", `{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"num_attention_heads":64,"num_hidden_layers":80,"num_key_value_heads":8,"torch_dtype":"bfloat16"}`,
		"gqa", 327_680, 0, 2560 << 20, 0, 163_840, 327_680, 40_960,
	},
	{
		"Qwen/Qwen2-0.5B", `{"architectures":["Qwen2ForCausalLM"],"hidden_size":896,"num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"sliding_window":131072,"max_window_layers":24,"use_sliding_window":false,"torch_dtype":"bfloat16"}`,
		"gqa", 12_288, 0, 96 << 20, 0, 6_144, 12_288, 6_144,
	},
	{
		"Qwen/Qwen2-7B", `{"architectures":["Qwen2ForCausalLM"],"hidden_size":3584,"num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"use_sliding_window":false,"torch_dtype":"bfloat16"}`,
		"gqa", 57_344, 0, 448 << 20, 0, 28_672, 57_344, 14_336,
	},
	{
		"Qwen/Qwen3-8B", `{"architectures":["Qwen3ForCausalLM"],"head_dim":128,"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":8,"sliding_window":null,"torch_dtype":"bfloat16"}`,
		"gqa", 147_456, 0, 1152 << 20, 0, 73_728, 147_456, 18_432,
	},
	{
		"Qwen/Qwen3-32B", `{"architectures":["Qwen3ForCausalLM"],"head_dim":128,"hidden_size":5120,"num_attention_heads":64,"num_hidden_layers":64,"num_key_value_heads":8,"torch_dtype":"bfloat16"}`,
		"gqa", 262_144, 0, 2 << 30, 0, 131_072, 262_144, 32_768,
	},
	{
		"deepseek-ai/DeepSeek-V3", `{"architectures":["DeepseekV3ForCausalLM"],"hidden_size":7168,"num_attention_heads":128,"num_hidden_layers":61,"num_key_value_heads":128,"kv_lora_rank":512,"qk_rope_head_dim":64,"torch_dtype":"bfloat16"}`,
		"mla", 70_272, 0, 549 << 20, 0, 35_136, 70_272, 70_272,
	},
	{
		"openai/gpt-oss-20b", `{"architectures":["GptOssForCausalLM"],"head_dim":64,"hidden_size":2880,"num_attention_heads":64,"num_hidden_layers":24,"num_key_value_heads":8,"sliding_window":128,"layer_types":[` + strings.Repeat(`"sliding_attention","full_attention",`, 11) + `"sliding_attention","full_attention"]}`,
		"hybrid", 24_576, 24_576, 195 << 20, 128, 12_288, 49_152, 3_072,
	},
	{
		"google/gemma-3-27b-it", `{"architectures":["Gemma3ForConditionalGeneration"],"torch_dtype":"bfloat16","text_config":{"model_type":"gemma3_text","head_dim":128,"hidden_size":5376,"num_attention_heads":32,"num_hidden_layers":62,"num_key_value_heads":16,"sliding_window":1024,"sliding_window_pattern":6}}`,
		"hybrid", 81_920, 425_984, 1056 << 20, 1024, 40_960, 507_904, 10_240,
	},
}

func TestLayoutsOfTwelveModels(t *testing.T) {
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			parse := func(d Deployment) Layout {
				l, err := ParseConfig("config.json", []byte(m.config), d)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			l := parse(Deployment{})
			if l.Kind != m.kind || l.PerToken != m.perToken || l.Windowed != m.windowed || l.Window != m.window || l.BlockTokens != 16 {
				t.Errorf("got %+v, want %s of %d and %d in %d tokens", l, m.kind, m.perToken, m.windowed, m.window)
			}
			if got := l.Request(8192); got != m.at8k {
				t.Errorf("8k tokens: got %v, want %v", got, m.at8k)
			}
			if got := parse(Deployment{KVDType: "fp8"}).PerToken; got != m.perTokenFP8 {
				t.Errorf("fp8: got %d, want %d", got, m.perTokenFP8)
			}
			if got := parse(Deployment{KeepAll: true}); got.PerToken != m.keepingAll || got.Windowed != 0 {
				t.Errorf("without windows: got %+v, want %d", got, m.keepingAll)
			}
			if got := parse(Deployment{TP: 8}).PerToken; got != m.perTokenTP8 {
				t.Errorf("tp 8: got %d, want %d", got, m.perTokenTP8)
			}
			if !strings.Contains(l.Source, "config.json (") {
				t.Errorf("source %q does not name the file and the architecture", l.Source)
			}
		})
	}
}

func TestLayoutVariants(t *testing.T) {
	config := func(name string) []byte {
		for _, m := range models {
			if strings.HasSuffix(m.name, name) {
				return []byte(m.config)
			}
		}
		t.Fatalf("no model %s", name)
		return nil
	}
	for name, c := range map[string]struct {
		model string
		d     Deployment
		want  Bytes // of all layers for one token
	}{
		"fp8_ds_mla rows of 656 B":                 {"DeepSeek-V3", Deployment{KVDType: "fp8_ds_mla"}, 40_016},
		"the fullest of two stages":                {"DeepSeek-V3", Deployment{PP: 2}, 31 * 1152},
		"more devices than heads":                  {"Qwen2-7B", Deployment{TP: 16}, 28 * 512},
		"scales of a float32 a head":               {"Meta-Llama-3-8B", Deployment{KVDType: "int8_per_token_head"}, 65_536 + 32*8*2*4},
		"nvfp4 with a scale for 16":                {"Meta-Llama-3-8B", Deployment{KVDType: "nvfp4"}, 32 * 1152},
		"windowed layers padded to groups":         {"gemma-3-27b-it", Deployment{PadGroups: true}, 81_920 + 60*8192},
		"a dtype that the engine names explicitly": {"gpt-oss-20b", Deployment{KVDType: "bfloat16"}, 49_152},
	} {
		l, err := ParseConfig("c", config(c.model), c.d)
		if err != nil || l.PerToken+l.Windowed != c.want {
			t.Errorf("%s: got %d, %v, want %d", name, l.PerToken+l.Windowed, err, c.want)
		}
	}
	l, _ := ParseConfig("c", config("gemma-3-27b-it"), Deployment{PadGroups: true})
	if got := l.Request(8192) - 8192*l.PerToken; got != 480<<20 {
		t.Errorf("Gemma's padded windows: got %v, want 480 MiB", got)
	}
}

func TestConfigErrorsNameTheFieldAndTheWayOut(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		d    Deployment
		want string
	}{
		"no JSON":        {`<html>`, Deployment{}, "c.json: got no config.json: invalid character"},
		"empty":          {`{}`, Deployment{}, "c.json: num_hidden_layers: got none in a config of an unnamed architecture"},
		"state space":    {`{"architectures":["MambaForCausalLM"],"num_hidden_layers":64,"hidden_size":4096}`, Deployment{}, "c.json: num_key_value_heads (or num_attention_heads): got none in a config of MambaForCausalLM"},
		"no head size":   {`{"model_type":"x","num_hidden_layers":2,"num_key_value_heads":2}`, Deployment{}, "head_dim (or hidden_size): got none in a config of x"},
		"no heads":       {`{"num_hidden_layers":2,"num_key_value_heads":2,"hidden_size":64}`, Deployment{}, "num_attention_heads: got none"},
		"tiny":           {`{"num_hidden_layers":2,"num_attention_heads":65,"hidden_size":64}`, Deployment{}, "hidden_size: got 64, want at least num_attention_heads"},
		"no layers":      {`{"num_hidden_layers":0}`, Deployment{}, "num_hidden_layers: got 0, want at least 1"},
		"huge":           {`{"num_hidden_layers":99999999}`, Deployment{}, "num_hidden_layers: got 99999999, want 0 to 131072"},
		"huge product":   {`{"num_hidden_layers":100000,"num_attention_heads":1000,"head_dim":1000}`, Deployment{}, "bytes per token: got 400000000000, want 1 to 1073741824"},
		"negative tp":    {`{"num_hidden_layers":2}`, Deployment{TP: -1}, "tp: got -1, want 0 to"},
		"window":         {`{"num_hidden_layers":2,"sliding_window":-4}`, Deployment{}, "sliding_window: got -4, want a number of tokens"},
		"no window":      {`{"num_hidden_layers":1,"num_attention_heads":1,"head_dim":8,"layer_types":["sliding_attention"]}`, Deployment{}, "sliding_window: got none"},
		"layer count":    {`{"num_hidden_layers":2,"num_attention_heads":1,"head_dim":8,"layer_types":["full_attention"]}`, Deployment{}, "layer_types: got 1, want num_hidden_layers, 2"},
		"layer type":     {`{"num_hidden_layers":1,"num_attention_heads":1,"head_dim":8,"layer_types":["psychic"]}`, Deployment{}, `layer_types[0]: got "psychic", want full_attention`},
		"no attention":   {`{"num_hidden_layers":1,"num_attention_heads":1,"head_dim":8,"layer_types":["mamba"]}`, Deployment{}, "layer_types: got no layer with attention"},
		"dtype":          {`{"num_hidden_layers":1,"torch_dtype":"float7"}`, Deployment{}, `torch_dtype: got "float7", want one such as`},
		"kv dtype":       {`{"num_hidden_layers":1}`, Deployment{KVDType: "fp3"}, `kv dtype: got "fp3", want one such as`},
		"mla dtype":      {`{"num_hidden_layers":1,"num_attention_heads":1,"head_dim":8}`, Deployment{KVDType: "fp8_ds_mla"}, "kv dtype fp8_ds_mla: got a model without kv_lora_rank"},
		"mla incomplete": {`{"num_hidden_layers":1,"kv_lora_rank":512}`, Deployment{}, "qk_rope_head_dim: got none"},
	} {
		_, err := ParseConfig("c.json", []byte(c.text), c.d)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
			continue
		}
		if name != "mla dtype" && !strings.Contains(err.Error(), "--geometry 128KiB") {
			t.Errorf("%s: got %v, want how to give bytes by hand", name, err)
		}
	}
	if _, err := FlatLayout(0, 16, "hand"); err == nil || !strings.Contains(err.Error(), "geometry: bytes per token: got 0, want more than 0") {
		t.Errorf("no bytes by hand: %v", err)
	}
}

func TestRequestInALayoutEqualsAPlainCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{
			PerToken: Bytes(rapid.IntRange(0, 1000).Draw(t, "full")), Windowed: Bytes(rapid.IntRange(0, 1000).Draw(t, "windowed")),
			Window: rapid.IntRange(1, 300).Draw(t, "window"), BlockTokens: rapid.IntRange(0, 40).Draw(t, "block"),
		}
		tokens := rapid.IntRange(-3, 2000).Draw(t, "tokens")
		block := max(l.BlockTokens, 1)
		var want Bytes
		for n := 0; n < tokens; n += block {
			want += Bytes(block) * l.PerToken
			if n < l.Window {
				want += Bytes(block) * l.Windowed
			}
		}
		if got := l.Request(tokens); got != want {
			t.Fatalf("%+v.Request(%d) = %d, want %d", l, tokens, got, want)
		}
		batched := rapid.IntRange(1, 500).Draw(t, "batched")
		if p := l.Prefill(tokens, batched); p < l.Request(tokens) {
			t.Fatalf("prefill of %d tokens takes %d, less than decoding, %d", tokens, p, l.Request(tokens))
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	for _, m := range models {
		f.Add(m.config, 1, "fp8")
	}
	f.Add(`{"num_hidden_layers":131072,"num_attention_heads":131072,"head_dim":131072}`, 131072, "auto")
	f.Fuzz(func(t *testing.T, text string, tp int, dtype string) {
		l, err := ParseConfig("f.json", []byte(text), Deployment{TP: tp, KVDType: dtype, PadGroups: tp%2 == 0})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json: ") {
				t.Errorf("got error %q, want the file first", err)
			}
			return
		}
		if b := l.PerToken + l.Windowed; b < 1 || b > maxPerToken || l.Windowed > 0 && l.Window < 1 || l.Request(1<<20) < l.Request(1) || l.Request(1) < 1 {
			t.Errorf("got %+v from %q, want bytes in range", l, text)
		}
	})
}
