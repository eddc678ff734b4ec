package engine

import (
	"testing"
)

// TestNoServerWorksToSayThatItServes: SGLang and LiteLLM compute for GET /health.
func TestNoServerWorksToSayThatItServes(t *testing.T) {
	want := map[string]string{
		"auto": "/v1/models", "openai": "/v1/models", "sglang": "/v1/models", "kvcached": "/v1/models",
		"emulator": "/health", "vllm": "/health", "vllm-sleep": "/health", "lull-vllm": "/health", "llamacpp": "/health",
		"triton": "/v2/health/ready", "tgi": "/info", "ollama": "/api/version",
	}
	for _, kind := range Kinds() {
		if got := AlivePath(kind); got != want[kind] {
			t.Errorf("%s: got %s, want %q", kind, got, want[kind])
		}
	}
}
