package kvbudget

import (
	"strings"
	"testing"
)

func TestLayoutFromCacheConfigInfo(t *testing.T) {
	labels := map[string]string{"block_size": "16", "num_gpu_blocks": "1000", "kv_cache_memory_bytes": "2097152000", "cache_dtype": "auto"}
	l, err := CacheConfigLayout(labels, 0)
	if err != nil || l.PerToken != 131_072 || l.BlockTokens != 16 || !strings.Contains(l.Source, "cache_config_info, kv_cache_memory_bytes / (1000 blocks of 16 tokens)") {
		t.Errorf("got %+v, %v", l, err)
	}
	labels["kv_cache_memory_bytes"] = "None"
	if l, err = CacheConfigLayout(labels, 16_000*4096); err != nil || l.PerToken != 4096 || !strings.Contains(l.Source, "the pool as measured") {
		t.Errorf("with a measured pool: got %+v, %v", l, err)
	}
}

func TestCacheConfigErrorsNameTheLabel(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		pool   Bytes
		want   string
	}{
		"no block":   {map[string]string{}, 1, `vllm:cache_config_info: block_size: got "", want a whole number above 0`},
		"huge block": {map[string]string{"block_size": "1000000000000"}, 1, `block_size: got "1000000000000"`},
		"no blocks":  {map[string]string{"block_size": "16", "num_gpu_blocks": "None"}, 1, `num_gpu_blocks: got "None"`},
		"no pool":    {map[string]string{"block_size": "16", "num_gpu_blocks": "9", "kv_cache_memory_bytes": "None"}, 0, `kv_cache_memory_bytes: got "None", want a whole number above 0, or the pool's bytes as measured`},
		"small pool": {map[string]string{"block_size": "16", "num_gpu_blocks": "9"}, 100, "pool: got 100 B for 9 blocks of 16 tokens, want at least a byte a token"},
	} {
		if _, err := CacheConfigLayout(c.labels, c.pool); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestLayoutIsLearnedFromWhatComesAndGoes(t *testing.T) {
	var e LearnedLayout
	if _, err := e.Layout(16); err == nil || !strings.Contains(err.Error(), "learned geometry: got 0 tokens that came and went, want 2048") {
		t.Errorf("before any move: %v", err)
	}
	g := Layout{PerToken: 114_688, BlockTokens: 16}
	const fixed = 1 << 30 // what does not follow tokens
	tokens := 0
	for i := range 200 {
		tokens += []int{1500, 40, -900, 333, -700}[i%5]
		e.Observe(fixed+g.Request(tokens), tokens)
	}
	l, err := e.Layout(16)
	if err != nil || l.PerToken < 113_000 || l.PerToken > 116_500 || !strings.HasPrefix(l.Source, "learned, held bytes against ") {
		t.Errorf("got %+v, %v, want about 114688 B a token", l, err)
	}
}

func TestStaticPoolTeachesNoLayout(t *testing.T) {
	var e LearnedLayout
	for i := range 100 {
		e.Observe(5<<30, 1000*(i%3))
	}
	if _, err := e.Layout(16); err == nil || !strings.Contains(err.Error(), "does not follow its tokens, as with a static pool") {
		t.Errorf("got %v", err)
	}
}
