package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/slo"
)

const (
	hashA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

const tiered = minimal + `
slo:
  ttft: 680ms
  tbt: 80ms
  tier_header: X-Tier
  tiers:
    - {name: gold, header: premium, keys: ["` + hashA + `"]}
    - {name: batch, keys: ["` + hashB + `"]}
  objectives:
    - {name: gold-chat, model: chat, tier: gold, ttft: 35ms, ttft_per_token: 80us, ttft_factor: 4, ttft_target: 1, success: 0.999}
    - {name: batch, tier: batch}
  overrides: {ttft_min: 100ms, ttft_max: 10s}
`

func TestObjectivesAreReadInTheirOrderWithTheDefaultLast(t *testing.T) {
	f, err := Parse([]byte(tiered))
	if err != nil {
		t.Fatal(err)
	}
	want := []slo.Objective{
		{Name: "gold-chat", Model: "chat", Tier: "gold", TTFT: slo.Line{Base: 35 * time.Millisecond, PerToken: 80 * time.Microsecond, Factor: 4}, TTFTTarget: slo.HardLimit, Success: 999_000},
		{Name: "batch", Tier: "batch"},
		{Name: "default", TTFT: slo.Line{Base: 680 * time.Millisecond, Factor: 1}, TBT: 80 * time.Millisecond,
			TTFTTarget: slo.DefaultTarget, TBTTarget: slo.DefaultTarget, E2ETarget: slo.DefaultTarget},
	}
	if got := f.SLO.Declared(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if f.SLO.Overrides != (Overrides{TTFTMin: 100 * time.Millisecond, TTFTMax: 10 * time.Second}) || f.SLO.Tiers[1].Keys[0] != hashB {
		t.Errorf("got %+v", f.SLO)
	}
}

func TestExampleHasTheDefaultObjectives(t *testing.T) {
	f, err := Parse([]byte(Example))
	if err != nil {
		t.Fatal(err)
	}
	d := Default().SLO
	d.Tiers, d.Objectives = f.SLO.Tiers, f.SLO.Objectives // empty, not nil
	if !reflect.DeepEqual(f.SLO, d) || len(d.Tiers)+len(d.Objectives) > 0 {
		t.Errorf("the example's slo differs from the defaults:\n%+v\n%+v", f.SLO, d)
	}
}

func TestBadObjectivesNameKeyValueAndRule(t *testing.T) {
	slo := func(text string) string { return minimal + "slo: {" + text + "}" }
	tier := `tier_header: X-Tier, tiers: [{name: gold, header: a}], `
	for name, c := range map[string]struct{ text, want string }{
		"per token alone":  {slo("ttft_per_token: 1ms"), "slo.ttft: got 0s with a ttft_per_token of 1ms, want more than 0: a prompt of unknown length must have a limit too"},
		"factor":           {slo("ttft: 1s, ttft_factor: -4"), "slo.ttft_factor: got -4, want at least 0 and at most 1000; 0 means 1"},
		"large factor":     {slo("ttft_factor: 4000"), "slo.ttft_factor: got 4000, want at least 0 and at most 1000; 0 means 1"},
		"target":           {slo("ttft_target: 99"), "slo.ttft_target: got 99, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"},
		"tbt target":       {slo("tbt_target: -0.5"), "slo.tbt_target: got -0.5, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"},
		"e2e target":       {slo("e2e_target: 0.9999999"), "slo.e2e_target: got 0.9999999, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"},
		"success":          {slo("success: 99.9"), "slo.success: got 99.9, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"},
		"target as text":   {slo("ttft_target: high"), `slo.ttft_target: got "high", want a number`},
		"header name":      {slo("tier_header: 'X Tier'"), `slo.tier_header: got "X Tier", want the name of a header: letters, digits and -`},
		"tier name":        {slo("tiers: [{name: 'a b', keys: ['" + hashA + "']}]"), `slo.tiers[0].name: got "a b", want letters, digits, -, _ and . only`},
		"tier twice":       {slo(`tier_header: X, tiers: [{name: a, header: x}, {name: a, header: y}]`), `slo.tiers[1].name: got "a" again, want each tier once`},
		"empty tier":       {slo("tiers: [{name: a}]"), "slo.tiers[0]: got neither header nor keys, want at least one: nobody would be in it"},
		"tier's header":    {slo("tiers: [{name: a, header: x}]"), `slo.tiers[0].header: got "x" without slo.tier_header, want the name of the header there`},
		"header twice":     {slo(`tier_header: X, tiers: [{name: a, header: x}, {name: b, header: x}]`), `slo.tiers[1].header: got "x" again, want each value in one tier`},
		"plain key":        {slo("tiers: [{name: a, keys: [sk-secret]}]"), "slo.tiers[0].keys[0]: got no SHA-256, want sha256: and 64 lower-case hex digits (printf %s KEY | sha256sum)"},
		"key twice":        {slo("tiers: [{name: a, keys: ['" + hashA + "']}, {name: b, keys: ['" + hashA + "']}]"), "slo.tiers[1].keys[0]: got " + hashA + " again, want each key in one tier"},
		"objective name":   {slo("objectives: [{model: m}]"), `slo.objectives[0].name: got "", want letters, digits, -, _ and . only: it names the series`},
		"reserved name":    {slo("objectives: [{name: default, model: m}]"), `slo.objectives[0].name: got "default" again, want each name once ("default" is what slo's own keys make)`},
		"objective of all": {slo("objectives: [{name: a, ttft: 1s}]"), "slo.objectives[0]: got neither model nor tier, days or hours, want at least one: slo's own keys are for all other requests"},
		"objective's days": {slo("objectives: [{name: a, days: weekend}]"), `slo.objectives[0].days: got "weekend", want days such as mon-fri or sat,sun`},
		"objective's time": {slo("objectives: [{name: a, hours: 8-18}]"), `slo.objectives[0].hours: got "8-18", want two different times of the day, such as 08:00-18:00 or 22:00-06:00`},
		"zone":             {slo("zone: Berlin"), `slo.zone: got "Berlin", want a time zone such as Europe/Berlin or UTC, or nothing for this machine's own`},
		"objective's tier": {slo(tier + "objectives: [{name: a, tier: silver}]"), `slo.objectives[0].tier: got "silver", want the name of a tier in slo.tiers`},
		"objective's rule": {slo("objectives: [{name: a, model: m, tbt_target: 2}]"), "slo.objectives[0].tbt_target: got 2, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"},
		"objective's key":  {slo("objectives: [{name: a, model: m, tftt: 2s}]"), "slo.objectives[0].tftt: no such key; see `lull config --print-default`"},
		"ttft bounds":      {slo("overrides: {ttft_min: 2s, ttft_max: 1s}"), "slo.overrides.ttft_max: got 1s, want at least ttft_min, 2s"},
		"tpot bounds":      {slo("overrides: {tpot_min: 2ms}"), "slo.overrides.tpot_max: got 0s, want at least tpot_min, 2ms"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "sk-secret") {
				t.Error("the error shows a key")
			}
		})
	}
}
