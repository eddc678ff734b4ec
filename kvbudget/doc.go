// Package kvbudget predicts the bytes of KV cache that an engine needs now and
// soon. It does no I/O, reads no clock and draws no random number: times come
// in as offsets, so the same calls give the same bytes.
//
// A Predictor joins five small models, each learned online and decayed: the
// geometry (tokens to blocks to bytes), the bytes of text per prompt token, the
// length of answers given what is generated already, the speed of decoding, and
// the arrivals of new need.
//
//	p := kvbudget.NewPredictor(kvbudget.Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 4096)
//	r := p.Admit(0, kvbudget.Spec{PromptBytes: 1200, MaxTokens: 256}, 50*time.Millisecond)
//	need := p.Demand(0, 50*time.Millisecond, 0.95) // live requests and what may arrive
//	p.Finish(2*time.Second, r, 300, 61)
//
// A Forecaster stands beside it, ready to take its place: a Layout (also windows
// and MLA, read from a config.json, an engine, or learned), answers by class,
// arrivals at several time scales, and the distribution of the largest need
// within a horizon, corrected by what came of past forecasts:
//
//	l, err := kvbudget.ParseConfig("config.json", text, kvbudget.Deployment{TP: 2})
//	f, err := kvbudget.NewForecaster(kvbudget.ForecastConfig{Layout: l, Horizons: []time.Duration{time.Second}})
//	a := f.Arrive(0, kvbudget.Asked{Model: "m", PromptTokens: 900, MaxTokens: 256})
//	o := f.Outlook(0, 0)
//	need := o.Quantile(0.95)
//	f.Finish(2*time.Second, a, 61)
//
// Cover prices a reserve on top of a forecast: the law of what arrives (Arriving),
// the measured times of handovers (Times) and the slack of requests (Exposure)
// say what misses cost without it, docs/RESERVE.md how:
//
//	toll := exposure.Toll(times, time.Second, func(tier string) float64 { return 0.5 })
//	p.Arriving(now, time.Millisecond, &law)
//	c := kvbudget.Cover{PerByte: price, Miss: 0.5, Step: 16 << 20, Most: 4 << 30}
//	c.Phases[0] = kvbudget.Phase{Share: 1, Toll: toll.Price, Arriving: &law}
//	reserve := c.Choose(present)
//
// Concurrency: none of its values may be used from two goroutines at once; the
// loop that owns handover owns them. Layouts are values and safe to share.
package kvbudget
