package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// TestVLLMsOwnCountersTellWhatItsPrefixCacheFound: a prompt that comes a second time
// is looked up whole and found, but for its last block (of 128 tokens, on a CPU).
func TestVLLMsOwnCountersTellWhatItsPrefixCacheFound(t *testing.T) {
	url := servers[0].up(t)
	e, err := engine.Open(t.Context(), engine.Config{Name: "main", Kind: engine.KindVLLM, URL: url, Pool: size.GiB})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(e) })
	sample := func() engine.Sample {
		s, err := e.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	prompt := fmt.Sprintf("of %v, ", time.Now()) + strings.Repeat("a word and another one, ", 60)
	before := sample()
	for range 2 {
		got, err := fetch(http.MethodPost, url+"/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":2}`, prompt))
		if err != nil || got.status != http.StatusOK {
			t.Fatalf("got %d %.200s, %v", got.status, got.body, err)
		}
	}
	var after engine.Sample
	err = until(servers[0].p, time.Minute, 100*time.Millisecond, func() bool { // vLLM adds up after the answer
		after = sample()
		return after.PrefixHits > before.PrefixHits
	})
	looked, found := after.PrefixQueries-before.PrefixQueries, after.PrefixHits-before.PrefixHits
	if err != nil || looked < 256 || found < looked/2-128 || found > looked/2 {
		t.Errorf("%d looked up, %d found, %v, want both prompts and all of the second but its last block", looked, found, err)
	}
}
