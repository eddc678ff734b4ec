package config

import "fmt"

// Warnings are what of a valid file can never come into play, or not as it seems.
// Nothing fails of it.
func (f File) Warnings() []string {
	var found []string
	if f.Proxy.Failover && len(f.Engines) < 2 {
		found = append(found, "proxy.failover: got true with one engine, want two or more in engines: it does nothing, there is no next one to serve")
	}
	if f.Policy.Prices.Priced() && !f.SLO.PromisesTTFT() {
		found = append(found, "policy.prices: got prices without an objective on TTFT, want slo.ttft or an entry of slo.objectives or slo.overrides that promises one: the reserve is then 0, nobody can miss what nobody promised")
	}
	if f.Interference.Pace == Priced && !f.Policy.Prices.Priced() {
		found = append(found, "interference.pace: got priced without policy.prices, want a sample and a miss price there: until then it does what auto does")
	}
	for i, e := range f.Engines {
		key := fmt.Sprintf("engines[%d]", i)
		found = append(found, e.stageWarnings(key)...)
		found = append(found, e.modelWarnings(key, f.Devices)...)
	}
	if f.SLO.Promises() {
		return found
	}
	for _, at := range []struct{ key, word string }{{"yield", f.Interference.Yield}, {"pace", f.Interference.Pace}} {
		if at.word != Never {
			found = append(found, fmt.Sprintf("interference.%s: got %s without an objective, want slo.ttft, slo.tbt or an entry of slo.objectives or slo.overrides that promises one: it does nothing, nobody can be late", at.key, at.word))
		}
	}
	return found
}
