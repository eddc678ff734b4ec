package config

import (
	"time"
	_ "time/tzdata" // slo.zone, where the machine has no zones of its own

	"github.com/lull-project/lull/slo"
)

// SLO is what requests are promised.
type SLO struct {
	// Limits are the default objective: of all requests that no entry of Objectives
	// is for.
	Limits `koanf:",squash"`
	// TierHeader is the request header whose value names a tier; empty means none.
	// It is the client's own word: give what matters by key.
	TierHeader string `koanf:"tier_header"`
	Tiers      []Tier `koanf:"tiers"`
	// Objectives are for a model, a tier, hours or several of these. The first that
	// fits holds, as it stands: it takes nothing from the default.
	Objectives []Objective `koanf:"objectives"`
	// Zone is the time zone of their days and hours, by its name in the tz database;
	// empty is the machine's own.
	Zone      string    `koanf:"zone"`
	Overrides Overrides `koanf:"overrides"`
}

// Limits are one objective; a limit of 0 means none.
type Limits struct {
	// TTFT, TTFTPerToken and TTFTFactor make the limit of a prompt: (ttft +
	// ttft_per_token * tokens) * ttft_factor. A factor of 0 means 1.
	TTFT         time.Duration `koanf:"ttft"`
	TTFTPerToken time.Duration `koanf:"ttft_per_token"`
	TTFTFactor   float64       `koanf:"ttft_factor"`
	// TTFTTarget, TBTTarget and E2ETarget are the shares that must be within: 1 is a
	// hard limit, 0 means 0.99. Too high, and every burst spends the budget; too
	// low, and users feel what no figure shows.
	TTFTTarget float64       `koanf:"ttft_target"`
	TBT        time.Duration `koanf:"tbt"`
	TBTTarget  float64       `koanf:"tbt_target"`
	E2E        time.Duration `koanf:"e2e"`
	E2ETarget  float64       `koanf:"e2e_target"`
	// Success is the share of requests that must get a whole answer; 0 means no
	// objective.
	Success float64 `koanf:"success"`
}

// Tier is a class of requests, told by a header's value or an API key.
type Tier struct {
	Name string `koanf:"name"`
	// Header is the value of SLO.TierHeader.
	Header string `koanf:"header"`
	// Keys are "sha256:" and the SHA-256 of an API key in hex; the key itself is in
	// no file.
	Keys []string `koanf:"keys"`
}

// Objective is the limits for a model, a tier, hours or several of these.
type Objective struct {
	Name  string `koanf:"name"`
	Model string `koanf:"model"`
	Tier  string `koanf:"tier"`
	// Days and Hours are when it holds, by a request's arrival: mon-fri, 08:00-18:00;
	// empty is always.
	Days   string `koanf:"days"`
	Hours  string `koanf:"hours"`
	Limits `koanf:",squash"`
}

// Overrides bound what clients may ask for by x-slo-ttft-ms and x-slo-tpot-ms;
// a max of 0 ignores the header.
type Overrides struct {
	TTFTMin time.Duration `koanf:"ttft_min"`
	TTFTMax time.Duration `koanf:"ttft_max"`
	TPOTMin time.Duration `koanf:"tpot_min"`
	TPOTMax time.Duration `koanf:"tpot_max"`
}

// DefaultObjective is the name of the objective that slo's own keys make.
const DefaultObjective = "default"

// defaultSLO promises nothing.
func defaultSLO() SLO {
	share := slo.DefaultTarget.Share()
	return SLO{Limits: Limits{TTFTFactor: 1, TTFTTarget: share, TBTTarget: share, E2ETarget: share}}
}

// Declared are the objectives in the order in which they are tried; the last is
// the default and fits every request. The file must be valid.
func (s SLO) Declared() []slo.Objective {
	var out []slo.Objective
	for _, o := range s.Objectives {
		declared := o.objective(o.Name, o.Model, o.Tier)
		declared.Hours, _ = slo.ParseHours(o.Days, o.Hours) // validate has read them
		out = append(out, declared)
	}
	return append(out, s.objective(DefaultObjective, "", ""))
}

// Location is Zone's. The file must be valid.
func (s SLO) Location() *time.Location {
	if s.Zone != "" {
		if l, err := time.LoadLocation(s.Zone); err == nil {
			return l
		}
	}
	return time.Local
}

// Promises says that some request may be promised a latency that training can
// make it miss, by the config or at its client's own wish.
func (s SLO) Promises() bool {
	for _, o := range s.Declared() {
		if o.TTFT.Base > 0 || o.TBT > 0 {
			return true
		}
	}
	return s.Overrides.TTFTMax+s.Overrides.TPOTMax > 0
}

// PromisesTTFT says that some request may be promised a time to first token.
func (s SLO) PromisesTTFT() bool {
	for _, o := range s.Declared() {
		if o.TTFT.Base > 0 {
			return true
		}
	}
	return s.Overrides.TTFTMax > 0
}

func (l Limits) objective(name, model, tier string) slo.Objective {
	target := func(share float64) slo.Target {
		t, _ := slo.TargetOf(share) // validate has read it; 0 stays 0, the default
		return t
	}
	return slo.Objective{
		Name: name, Model: model, Tier: tier,
		TTFT:       slo.Line{Base: l.TTFT, PerToken: l.TTFTPerToken, Factor: l.TTFTFactor},
		TTFTTarget: target(l.TTFTTarget), TBT: l.TBT, TBTTarget: target(l.TBTTarget),
		E2E: l.E2E, E2ETarget: target(l.E2ETarget), Success: target(l.Success),
	}
}
