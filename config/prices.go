package config

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/slo"
)

// Prices make the reserve follow from what it costs and saves (docs/RESERVE.md);
// without a sample and a miss price it is policy.reserve. Any currency: only the
// ratio counts.
type Prices struct {
	PriceList `koanf:",squash"`
	// Hours are other prices at some hours of the week, on the clock of slo.zone. The
	// first that holds counts, as it stands: it takes nothing from those above.
	Hours []PriceHours `koanf:"hours"`
	// OffShare is the share of the time without the reserve, in intervals of OffFor
	// that begin at random, so that what it brings can be seen; 0 is never. More shows
	// it sooner, and each interval is one without insurance.
	OffShare float64       `koanf:"off_share"`
	OffFor   time.Duration `koanf:"off_for"`
}

// PriceList is prices that hold together.
type PriceList struct {
	// Sample is the price of one training sample that is not made. Too high, and
	// nothing is kept for requests; too low, and training gets little for it.
	Sample float64 `koanf:"sample"`
	// Miss is the price of one request that misses its TTFT objective, of a tier that
	// Tiers does not name.
	Miss float64 `koanf:"miss"`
	// Prefill is the price of one second of prefill that a cached prefix saves its
	// server. With it cached prefixes are kept from training while they are worth more
	// than to it; 0, and they go when nothing else wants their bytes but training.
	Prefill float64     `koanf:"prefill"`
	Tiers   []TierPrice `koanf:"tiers"`
}

// TierPrice is the price of a miss in one tier of slo.tiers.
type TierPrice struct {
	Name string  `koanf:"name"`
	Miss float64 `koanf:"miss"`
}

// PriceHours are prices with the hours at which they hold.
type PriceHours struct {
	// Days and Hours are as in slo.objectives: mon-fri, 08:00-18:00.
	Days      string `koanf:"days"`
	Hours     string `koanf:"hours"`
	PriceList `koanf:",squash"`
}

const (
	// mostOffShare keeps the check from being the rule.
	mostOffShare = 0.5
	// mostPrice keeps what is derived from prices finite.
	mostPrice = 1e9
)

// Priced says that the reserve is priced at some hour.
func (p Prices) Priced() bool { return p.Sample > 0 || len(p.Hours) > 0 }

// At is the list that holds at a time of the week. The file must be valid.
func (p Prices) At(m slo.Moment) PriceList {
	for _, h := range p.Hours {
		if hours, _ := slo.ParseHours(h.Days, h.Hours); hours.Hold(m) {
			return h.PriceList
		}
	}
	return p.PriceList
}

func (p Prices) validate(s SLO) error {
	const key = "policy.prices"
	tiers := map[string]bool{}
	for _, t := range s.Tiers {
		tiers[t.Name] = true
	}
	if err := p.PriceList.validate(key, tiers); err != nil {
		return err
	}
	for i, h := range p.Hours {
		at := fmt.Sprintf("%s.hours[%d]", key, i)
		if h.Days == "" && h.Hours == "" {
			return fmt.Errorf("%s: got neither days nor hours, want at least one: prices for all other hours stand in %s itself", at, key)
		}
		if _, err := slo.ParseHours(h.Days, h.Hours); err != nil {
			return fmt.Errorf("%s.%w", at, err)
		}
		if err := h.PriceList.validate(at, tiers); err != nil {
			return err
		}
	}
	if p.OffShare < 0 || p.OffShare > mostOffShare {
		return fmt.Errorf("%s.off_share: got %v, want a fraction in [0, %v]", key, p.OffShare, mostOffShare)
	}
	if p.OffShare > 0 && p.OffFor < time.Second {
		return fmt.Errorf("%s.off_for: got %v beside an off_share of %v, want at least 1s: shorter ones end before the memory has moved", key, p.OffFor, p.OffShare)
	}
	return nil
}

func (l PriceList) validate(key string, tiers map[string]bool) error {
	switch { // the decoder refuses what is not finite
	case l.Sample < 0:
		return fmt.Errorf("%s.sample: got %v, want 0 or more", key, l.Sample)
	case l.Miss < 0:
		return fmt.Errorf("%s.miss: got %v, want 0 or more", key, l.Miss)
	case l.Prefill < 0:
		return fmt.Errorf("%s.prefill: got %v, want 0 or more", key, l.Prefill)
	case max(l.Sample, l.Miss, l.Prefill) > mostPrice:
		return fmt.Errorf("%s: got a price of %v, want at most %v: only the ratio counts", key, max(l.Sample, l.Miss, l.Prefill), mostPrice)
	case l.Prefill > 0 && l.Sample == 0:
		return fmt.Errorf("%s.prefill: got %v without sample and miss, want those too: there is nothing to weigh it against", key, l.Prefill)
	case l.Sample > 0 && l.Miss == 0:
		return fmt.Errorf("%s.miss: got 0 beside a sample price of %v, want more than 0: without it no reserve is worth anything", key, l.Sample)
	case l.Miss > 0 && l.Sample == 0:
		return fmt.Errorf("%s.sample: got 0 beside a miss price of %v, want more than 0: without it no reserve is too large", key, l.Miss)
	case l.Sample == 0 && len(l.Tiers) > 0:
		return fmt.Errorf("%s.tiers: got prices of tiers without sample and miss, want those too", key)
	}
	seen := map[string]bool{}
	for i, t := range l.Tiers {
		at := fmt.Sprintf("%s.tiers[%d]", key, i)
		switch {
		case !tiers[t.Name]:
			return fmt.Errorf("%s.name: got %q, want the name of a tier in slo.tiers", at, t.Name)
		case seen[t.Name]:
			return fmt.Errorf("%s.name: got %q again, want each tier once", at, t.Name)
		case t.Miss > mostPrice:
			return fmt.Errorf("%s.miss: got %v, want at most %v: only the ratio counts", at, t.Miss, mostPrice)
		case t.Miss < 0:
			return fmt.Errorf("%s.miss: got %v, want 0 or more", at, t.Miss)
		}
		seen[t.Name] = true
	}
	return nil
}
