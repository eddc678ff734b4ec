package e2e

import (
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/proxy"
)

// stamps is an Observer that keeps Lull's time of every generated event.
type stamps struct {
	mu   sync.Mutex
	at   []time.Time
	done chan proxy.Record
}

func (s *stamps) Content(string, time.Time, int) {}

// Event is called once a generated event, with or without text.
func (s *stamps) Event(_ string, at time.Time) {
	s.mu.Lock()
	s.at = append(s.at, at)
	s.mu.Unlock()
}

func (s *stamps) Done(r proxy.Record) { s.done <- r }

// TestTheClientsTimesPairWithLulls runs Lull's data path inside the test, since
// only there its time of every single event can be read, and pairs each with the
// OpenAI client's.
func TestTheClientsTimesPairWithLulls(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		cfg := proxy.DefaultConfig()
		cfg.Upstreams = []proxy.Upstream{{Name: s.name, URL: s.up(t)}}
		for _, endpoint := range []string{"chat", "completions"} {
			seen := &stamps{done: make(chan proxy.Record, 1)}
			front := httptest.NewServer(proxy.New(cfg, nil, seen))
			got := ask(t, front.URL, s.model, endpoint, "stream", 64, prompt)
			record := <-seen.done
			front.Close()
			if len(seen.at) != len(got.At) || record.Events != len(seen.at) || record.OutputTokens != 64 || record.TokenSource != proxy.TokensFromUsage {
				t.Fatalf("%s: the client saw %d events, Lull %d (record %+v); want one for one and 64 tokens from usage", endpoint, len(got.At), len(seen.at), record)
			}
			pairUp(t, endpoint, seen.at, got.At)
		}
	})
}

// pairUp compares, event by event, the absolute times and then the gaps.
func pairUp(t *testing.T, endpoint string, lull []time.Time, client []int64) {
	t.Helper()
	var behind, gaps, apart []time.Duration
	for i := range lull {
		behind = append(behind, time.Duration(client[i]-lull[i].UnixMicro())*time.Microsecond)
		if i > 0 {
			gap := lull[i].Sub(lull[i-1])
			gaps = append(gaps, gap)
			apart = append(apart, (time.Duration(client[i]-client[i-1])*time.Microsecond - gap).Abs())
		}
	}
	tbt := median(gaps)
	limit := max(10*time.Millisecond, tbt/5)
	if d := median(behind); d < -time.Millisecond || d > limit {
		t.Errorf("%s: the client's times are %v behind Lull's at the median, want 0 to %v", endpoint, d, limit)
	}
	if d := median(apart); d > limit {
		t.Errorf("%s: gaps differ by %v at the median, want at most %v", endpoint, d, limit)
	}
	t.Logf("%s: n=%d, TBT P50 %v; client behind Lull P50 %v, gaps apart P50 %v", endpoint, len(lull), tbt, median(behind), median(apart))
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}
