// Package kvbudget predicts the bytes of KV cache that an engine needs now and
// soon. It does no I/O, reads no clock and draws no random number: times come
// in as offsets, so the same calls give the same bytes.
//
// A Forecaster joins a Layout (tokens to bytes, read from a config.json, an
// engine, or learned), the tokens of a prompt by its content, the length of answers
// by class, the speed of decoding and arrivals at several time scales into the
// distribution of the largest need within a horizon, corrected by what came of
// past forecasts. Each is learned online and decayed:
//
//	l, err := kvbudget.ParseConfig("config.json", text, kvbudget.Deployment{TP: 2})
//	f, err := kvbudget.NewForecaster(kvbudget.ForecastConfig{Layout: l, Horizons: []time.Duration{time.Second}})
//	a := f.Arrive(0, kvbudget.Asked{Model: "m", PromptBytes: 3600, MaxTokens: 256})
//	need := f.Demand(0, 0, 0.95) // over the first horizon; Outlook has the whole law
//	f.Finish(2*time.Second, a, kvbudget.Usage{PromptTokens: 900, OutputTokens: 61})
//
// Cover prices a reserve on top of a forecast: the law of what arrives (Arriving),
// the measured times of handovers (Times) and the slack of requests (Exposure)
// say what misses cost without it, docs/RESERVE.md how:
//
//	toll := exposure.Toll(times, time.Second, func(tier string) float64 { return 0.5 })
//	f.Arriving(now, time.Millisecond, &law)
//	c := kvbudget.Cover{PerByte: price, Miss: 0.5, Step: 16 << 20, Most: 4 << 30}
//	c.Phases[0] = kvbudget.Phase{Share: 1, Toll: toll.Price, Arriving: &law}
//	reserve := c.Choose(present)
//
// Concurrency: none of its values may be used from two goroutines at once; the
// loop that owns handover owns them. Layouts are values and safe to share.
package kvbudget
