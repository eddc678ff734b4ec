package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/lull-project/lull/slo"
)

func TestPricesHoldByTheHour(t *testing.T) {
	f, err := Parse([]byte(tiered + `
policy:
  prices:
    sample: 0.001
    miss: 0.5
    tiers: [{name: gold, miss: 5}]
    hours:
      - {days: sat-sun, sample: 0.01, miss: 0.1}
      - {hours: "22:00-06:00"}
    off_share: 0.1
`))
	if err != nil {
		t.Fatal(err)
	}
	p := f.Policy.Prices
	if !p.Priced() || p.OffFor != 2*time.Second {
		t.Errorf("got %+v", p)
	}
	day := PriceList{Sample: 0.001, Miss: 0.5, Tiers: []TierPrice{{"gold", 5}}}
	for at, want := range map[slo.Moment]PriceList{
		{Day: time.Monday, Minute: 12 * 60}:   day,
		{Day: time.Monday, Minute: 23 * 60}:   {},
		{Day: time.Saturday, Minute: 23 * 60}: {Sample: 0.01, Miss: 0.1},
	} {
		if got := p.At(at); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: got %+v, want %+v", at, got, want)
		}
	}
	if Default().Policy.Prices.Priced() {
		t.Error("the default has prices, want the constant reserve")
	}
}

func TestBadPricesNameKeyValueAndRule(t *testing.T) {
	prices := func(text string) string { return tiered + "policy: {prices: {" + text + "}}" }
	for name, c := range map[string]struct{ text, want string }{
		"negative sample":  {prices("sample: -1, miss: 1"), "policy.prices.sample: got -1, want 0 or more"},
		"negative miss":    {prices("miss: -1"), "policy.prices.miss: got -1, want 0 or more"},
		"a large price":    {prices("sample: 1, miss: 1e12"), "policy.prices: got a price of 1e+12, want at most 1e+09: only the ratio counts"},
		"a tier's":         {prices("sample: 1, miss: 1, tiers: [{name: gold, miss: 1e12}]"), "policy.prices.tiers[0].miss: got 1e+12, want at most 1e+09: only the ratio counts"},
		"infinite":         {prices("miss: .inf"), "policy.prices.miss: got +Inf, want a finite number"},
		"a currency":       {prices("miss: 5 EUR"), `policy.prices.miss: got "5 EUR", want a number`},
		"no miss":          {prices("sample: 0.5"), "policy.prices.miss: got 0 beside a sample price of 0.5, want more than 0: without it no reserve is worth anything"},
		"no sample":        {prices("miss: 0.5"), "policy.prices.sample: got 0 beside a miss price of 0.5, want more than 0: without it no reserve is too large"},
		"negative prefill": {prices("sample: 1, miss: 1, prefill: -1"), "policy.prices.prefill: got -1, want 0 or more"},
		"prefill alone":    {prices("prefill: 1"), "policy.prices.prefill: got 1 without sample and miss, want those too: there is nothing to weigh it against"},
		"tiers alone":      {prices("tiers: [{name: gold, miss: 1}]"), "policy.prices.tiers: got prices of tiers without sample and miss, want those too"},
		"unknown tier":     {prices("sample: 1, miss: 1, tiers: [{name: silver, miss: 1}]"), `policy.prices.tiers[0].name: got "silver", want the name of a tier in slo.tiers`},
		"tier twice":       {prices("sample: 1, miss: 1, tiers: [{name: gold, miss: 1}, {name: gold, miss: 2}]"), `policy.prices.tiers[1].name: got "gold" again, want each tier once`},
		"tier's price":     {prices("sample: 1, miss: 1, tiers: [{name: gold, miss: -1}]"), "policy.prices.tiers[0].miss: got -1, want 0 or more"},
		"hours of always":  {prices("hours: [{sample: 1, miss: 1}]"), "policy.prices.hours[0]: got neither days nor hours, want at least one: prices for all other hours stand in policy.prices itself"},
		"hours' days":      {prices("hours: [{days: weekend, sample: 1, miss: 1}]"), `policy.prices.hours[0].days: got "weekend", want days such as mon-fri or sat,sun`},
		"hours' time":      {prices("hours: [{hours: 8-18}]"), `policy.prices.hours[0].hours: got "8-18", want two different times of the day, such as 08:00-18:00 or 22:00-06:00`},
		"hours' miss":      {prices("hours: [{days: mon, sample: 1}]"), "policy.prices.hours[0].miss: got 0 beside a sample price of 1, want more than 0: without it no reserve is worth anything"},
		"off share":        {prices("off_share: 5"), "policy.prices.off_share: got 5, want a fraction in [0, 0.5]"},
		"short intervals":  {prices("off_share: 0.1, off_for: 10ms"), "policy.prices.off_for: got 10ms beside an off_share of 0.1, want at least 1s: shorter ones end before the memory has moved"},
		"no such key":      {prices("samples: 1"), "policy.prices.samples: no such key; see `lull config --print-default`"},
		"prices as a word": {tiered + "policy: {prices: high}", `policy.prices: got "high", want a section with keys`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse([]byte(c.text)); err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}
