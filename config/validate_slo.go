package config

import (
	"fmt"
	"regexp"
	"time"

	"github.com/lull-project/lull/slo"
)

var (
	headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	keyHash    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// mostFactor keeps a slipped digit from making a promise of hours.
const mostFactor = 1000

func (s SLO) validate(a Auth) error {
	if err := s.Limits.validate("slo"); err != nil {
		return err
	}
	if s.TierHeader != "" && !headerName.MatchString(s.TierHeader) {
		return fmt.Errorf("slo.tier_header: got %q, want the name of a header: letters, digits and -", s.TierHeader)
	}
	if _, err := time.LoadLocation(s.Zone); err != nil || s.Zone == "Local" {
		return fmt.Errorf("slo.zone: got %q, want a time zone such as Europe/Berlin or UTC, or nothing for this machine's own", s.Zone)
	}
	tiers, err := s.validateTiers(a)
	if err != nil {
		return err
	}
	if err := s.validateObjectives(tiers); err != nil {
		return err
	}
	return s.Overrides.validate()
}

func (l Limits) validate(key string) error {
	if l.TTFTPerToken > 0 && l.TTFT <= 0 {
		return fmt.Errorf("%s.ttft: got 0s with a ttft_per_token of %v, want more than 0: a prompt of unknown length must have a limit too", key, l.TTFTPerToken)
	}
	if l.TTFTFactor < 0 || l.TTFTFactor > mostFactor {
		return fmt.Errorf("%s.ttft_factor: got %v, want at least 0 and at most %d; 0 means 1", key, l.TTFTFactor, mostFactor)
	}
	for _, t := range []struct {
		name  string
		share float64
	}{{"ttft_target", l.TTFTTarget}, {"tbt_target", l.TBTTarget}, {"e2e_target", l.E2ETarget}, {"success", l.Success}} {
		if t.share == 0 {
			continue
		}
		if _, err := slo.TargetOf(t.share); err != nil {
			return fmt.Errorf("%s.%s: %w", key, t.name, err)
		}
	}
	return nil
}

func (s SLO) validateTiers(a Auth) (names map[string]bool, err error) {
	names = map[string]bool{}
	headers, keys := map[string]bool{}, map[string]bool{}
	for i, t := range s.Tiers {
		key := fmt.Sprintf("slo.tiers[%d]", i)
		switch {
		case !plainName.MatchString(t.Name):
			return nil, fmt.Errorf("%s.name: got %q, want letters, digits, -, _ and . only", key, t.Name)
		case names[t.Name]:
			return nil, fmt.Errorf("%s.name: got %q again, want each tier once", key, t.Name)
		case t.Header == "" && len(t.Keys) == 0 && !a.has(t.Name):
			return nil, fmt.Errorf("%s: got neither header nor keys, want at least one: nobody would be in it", key)
		case t.Header != "" && s.TierHeader == "":
			return nil, fmt.Errorf("%s.header: got %q without slo.tier_header, want the name of the header there", key, t.Header)
		case headers[t.Header]:
			return nil, fmt.Errorf("%s.header: got %q again, want each value in one tier", key, t.Header)
		}
		names[t.Name], headers[t.Header] = true, t.Header != ""
		for j, k := range t.Keys {
			switch {
			case !keyHash.MatchString(k):
				// A key that was pasted here by mistake must not reach a log.
				return nil, fmt.Errorf("%s.keys[%d]: got no SHA-256, want sha256: and 64 lower-case hex digits (printf %%s KEY | sha256sum)", key, j)
			case keys[k]:
				return nil, fmt.Errorf("%s.keys[%d]: got %s again, want each key in one tier", key, j, k)
			}
			keys[k] = true
		}
	}
	return names, nil
}

func (s SLO) validateObjectives(tiers map[string]bool) error {
	names := map[string]bool{DefaultObjective: true}
	for i, o := range s.Objectives {
		key := fmt.Sprintf("slo.objectives[%d]", i)
		switch {
		case !plainName.MatchString(o.Name):
			return fmt.Errorf("%s.name: got %q, want letters, digits, -, _ and . only: it names the series", key, o.Name)
		case names[o.Name]:
			return fmt.Errorf("%s.name: got %q again, want each name once (%q is what slo's own keys make)", key, o.Name, DefaultObjective)
		case o.Model == "" && o.Tier == "" && o.Days == "" && o.Hours == "":
			return fmt.Errorf("%s: got neither model nor tier, days or hours, want at least one: slo's own keys are for all other requests", key)
		case o.Tier != "" && !tiers[o.Tier]:
			return fmt.Errorf("%s.tier: got %q, want the name of a tier in slo.tiers", key, o.Tier)
		}
		if _, err := slo.ParseHours(o.Days, o.Hours); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
		if err := o.Limits.validate(key); err != nil {
			return err
		}
		names[o.Name] = true
	}
	return nil
}

func (o Overrides) validate() error {
	for _, b := range []struct {
		name        string
		least, most time.Duration
	}{{"ttft", o.TTFTMin, o.TTFTMax}, {"tpot", o.TPOTMin, o.TPOTMax}} {
		if b.least > b.most {
			return fmt.Errorf("slo.overrides.%s_max: got %v, want at least %s_min, %v", b.name, b.most, b.name, b.least)
		}
	}
	return nil
}
