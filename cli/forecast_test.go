package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// llama are the fields of Meta-Llama-3-8B's public config.json that decide its KV.
const llama = `{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"torch_dtype":"bfloat16"}`

func TestForecastShowsAGeometry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(llama), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                 "gqa, 131072 B a token (128.0KiB), 2.0MiB a block of 16 tokens; source: config.json (LlamaForCausalLM), tp 1, pp 1, kv dtype bfloat16\n",
		"--tp=8":           "gqa, 16384 B a token",
		"--kv-dtype=fp8":   "gqa, 65536 B a token (64.0KiB), 1.0MiB a block of 16 tokens; source: config.json (LlamaForCausalLM), tp 1, pp 1, kv dtype fp8\n",
		"--block-tokens=1": "128.0KiB a block of 1 tokens",
	} {
		out, err := run(append([]string{"forecast", "--geometry", path}, strings.Fields(args)...)...)
		if err != nil || !strings.Contains(out, want) || !strings.Contains(out, "request of  8192 tokens: ") {
			t.Errorf("%s: got %q, %v, want %q", args, out, err, want)
		}
	}
}

// TestForecastShowsEveryPipelineStage: and which of them is the fullest.
func TestForecastShowsEveryPipelineStage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	text := strings.Replace(llama, `"num_hidden_layers":32`, `"num_hidden_layers":6,"sliding_window":1024,"layer_types":["sliding_attention","sliding_attention","sliding_attention","full_attention","full_attention","full_attention"]`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run("forecast", "--geometry", path, "--pp", "2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"stage 0: sliding, 0 B a token", "stage 1: gqa, 12288 B a token", "pp 2, kv dtype bfloat16, layers 3 to 5\n",
		"request of     1 tokens: most on stage 0, 192.0KiB\n", "request of  8192 tokens: most on stage 1, 96.0MiB\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestForecastScoresTheEmbeddedTrace(t *testing.T) {
	out, err := run("forecast", "--trace", "embedded", "--geometry", "64KiB")
	if err != nil || !strings.Contains(out, "| largest need within 5s |") || !strings.Contains(out, "source: given by hand") {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestForecastScoresTheTimesThatAreAskedFor: none of the others, and nothing of the
// warm-up.
func TestForecastScoresTheTimesThatAreAskedFor(t *testing.T) {
	args := []string{"forecast", "--trace", "embedded", "--geometry", "64KiB", "--within", "200ms", "--time-of-day=false", "--warmup"}
	out, err := run(append(args, "2m")...)
	if err != nil || strings.Count(out, "| largest need within ") != 1 || !strings.Contains(out, "| largest need within 200ms |") {
		t.Errorf("got %q, %v, want 200 ms alone", out, err)
	}
	if _, err := run(append(args, "1000h")...); err == nil || !strings.Contains(err.Error(), "want more than warmup 1000h0m0s") {
		t.Errorf("got %v, want that the trace is no longer than the warm-up", err)
	}
}

func TestBadForecastsAreUsageErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(bad, []byte(`{"architectures":["OddForCausalLM"],"num_hidden_layers":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"forecast: got nothing to do, want --geometry":                                    {},
		"config.json: num_key_value_heads (or num_attention_heads): got none in a config": {"--geometry", bad},
		"forecast: --geometry: open " + bad + ".none":                                     {"--geometry", bad + ".none"},
		"geometry: bytes per token: got 0":                                                {"--geometry", "0"},
		"forecast: tbt: got 0s":                                                           {"--trace", "embedded", "--tbt", "0s"},
		"trace: rate: got -1":                                                             {"--trace", "embedded", "--rate", "-1"},
	} {
		_, err := run(append([]string{"forecast"}, args...)...)
		var usage usageError
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &usage) {
			t.Errorf("%q: got %v, want the usage error %q", args, err, want)
		}
	}
}
