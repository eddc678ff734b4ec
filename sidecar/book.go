package sidecar

import (
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

// account is one objective and what was counted of it. Requests keep the account
// that they were promised under, also when the config has dropped it since.
type account struct {
	objective slo.Objective
	since     time.Time    // where its counter's clock begins
	counter   *slo.Counter // under score.mu
	// The histograms of the objective's kinds, each of promised samples.
	ttft, tbt, e2e *telemetry.Latencies
}

// book is the objectives of one config in the order in which they are tried. It
// never changes.
type book struct {
	zone       *time.Location // of the objectives' hours
	objectives []slo.Objective
	accounts   []*account // one an objective
}

// pick is the account of a request by its model, its tier and when it arrived; the
// last fits all.
func (b *book) pick(model, tier string, at time.Time) *account {
	return b.accounts[slo.Pick(b.objectives, model, tier, slo.MomentOf(at.In(b.zone)))]
}

// declare makes the config's objectives those of the requests to come. One that
// is as it was before goes on counting; any other begins anew: misses of one
// limit say nothing of another.
func (s *score) declare(c config.SLO) {
	var before []*account
	if b := s.book.Load(); b != nil {
		before = b.accounts
	}
	b := &book{zone: c.Location(), objectives: c.Declared()}
	for _, o := range b.objectives {
		b.accounts = append(b.accounts, s.accountOf(o, before))
	}
	s.book.Store(b)
}

func (s *score) accountOf(o slo.Objective, before []*account) *account {
	for _, a := range before {
		if a.objective == o {
			return a
		}
	}
	return &account{objective: o, since: s.now(), counter: slo.NewCounter(o), ttft: &telemetry.Latencies{}, tbt: &telemetry.Latencies{}, e2e: &telemetry.Latencies{}}
}
