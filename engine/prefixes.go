package engine

import (
	"fmt"
	"sync"
)

// What servers count of the prompt tokens that they looked up in their prefix cache
// and found there. vLLM's older names (gpu_prefix_cache_*) are not read: some
// releases counted blocks under them.
const (
	vllmPrefixes   = "vllm:prefix_cache_" // of both
	vllmLookedUp   = vllmPrefixes + "queries_total"
	vllmFound      = vllmPrefixes + "hits_total"
	sglangLookedUp = "sglang:prompt_tokens_total"
	sglangFound    = "sglang:cached_tokens_total" // one series a place that they were found in
	sglangHitRate  = "sglang:cache_hit_rate"      // of the last batch; all that older releases publish
)

// vllmPrefixCounts adds vLLM's counters to s; without a prefix cache it has none.
func vllmPrefixCounts(s *Sample, f families) error {
	lookedUp, _, err := f.sum(vllmLookedUp)
	if err != nil {
		return err
	}
	found, _, err := f.sum(vllmFound)
	if err != nil {
		return err
	}
	s.setPrefixes(lookedUp, found)
	return nil
}

// sglangPrefixes are an SGLang's counts.
type sglangPrefixes struct {
	mu sync.Mutex
	// lookedUp is the counter as last read, found what the hit rates since its
	// beginning come to.
	lookedUp, found float64
}

// counts adds SGLang's counters to s. A release that publishes no count of what was
// found publishes the share of its last batch: that of the tokens since the last
// reading counts as found.
func (p *sglangPrefixes) counts(s *Sample, f families) error {
	lookedUp, err := f.perRank(sglangLookedUp, plus)
	if err != nil {
		return err
	}
	found, err := f.perRank(sglangFound, plus)
	if err != nil {
		return err
	}
	if len(f[sglangFound].GetMetric()) == 0 {
		rate, err := f.perRank(sglangHitRate, largest)
		if err != nil {
			return err
		}
		if rate > 1 {
			return fmt.Errorf("%s: got %v, want a fraction in [0, 1]", sglangHitRate, rate)
		}
		found = p.integrate(lookedUp, rate)
	}
	s.setPrefixes(lookedUp, found)
	return nil
}

// integrate is what was found of lookedUp tokens. A counter that went back is another
// process's.
func (p *sglangPrefixes) integrate(lookedUp, rate float64) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lookedUp < p.lookedUp {
		p.lookedUp, p.found = 0, 0
	}
	p.found += rate * (lookedUp - p.lookedUp)
	p.lookedUp = lookedUp
	return p.found
}

// setPrefixes takes counts of tokens; no server finds more than it looks up.
func (s *Sample) setPrefixes(lookedUp, found float64) {
	s.PrefixQueries, s.PrefixHits = uint64(lookedUp), uint64(min(found, lookedUp))
}
