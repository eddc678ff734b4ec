package emulator

import (
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigErrorsNameFlagValueAndRule(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Listen = "8000" }, `emulate: --listen: got "8000", want host:port: `},
		{func(c *Config) { c.Model = `a"b` }, `emulate: --model: got "a\"b", want a name without quotes`},
		{func(c *Config) { c.MaxSeqs = 0 }, "emulate: --max-seqs: got 0, want 1 to 16777216"},
		{func(c *Config) { c.MeanOutputTokens = -1 }, "emulate: --mean-output-tokens: got -1, want 1 to 16777216"},
		{func(c *Config) { c.TimeScale = -1 }, "emulate: --time-scale: got -1, want a number above 0"},
		{func(c *Config) { c.MaxBatchedTokens = 9 }, "emulate: --max-batched-tokens: got 9, want at least --max-seqs (256)"},
		{func(c *Config) { c.KVBytesPerToken = 0 }, "emulate: --kv-bytes-per-token: got 0B, want 1B to 1GiB"},
		{func(c *Config) { c.Pool = 200 * size.MiB }, "emulate: --pool: got 200.0MiB, want at least 256.0MiB, which one request of --max-model-len (4096 tokens) needs"},
		{func(c *Config) { c.Bound = size.GiB }, "emulate: --bound: got 1.0GiB, want 0B to --pool (640.0MiB)"},
		{func(c *Config) { c.Resident = -2 }, "emulate: --resident: got -2B, want 0B to 16 TiB"},
		{func(c *Config) { c.Faults = "fire" }, `emulate: --fault-*: fault "fire": not known`},
		{func(c *Config) { c.Calibration = "tpu" }, `emulate: --calibration: calibration "tpu": not known, want one of a100|Llama-2-13B`},
		{func(c *Config) { c.CatchUp = -1 }, "emulate: model: catch_up: got -1ns, want 0 or more"},
	} {
		cfg := DefaultConfig()
		tc.change(&cfg)
		_, err := Start(t.Context(), cfg)
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}
