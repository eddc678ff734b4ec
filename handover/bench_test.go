package handover

import (
	"strconv"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// busy is a core with 1,000 live requests, one trainer and nothing owed.
func busy(b *testing.B) *Handover {
	c := demoConfig()
	c.Devices[0].Capacity = 80 * size.GiB
	c.Engines[0].Pool = 60 * size.GiB
	c.Grace = 0
	h, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	h.Step(EngineSeen{Engine: "llm", Bound: 60 * size.GiB})
	h.Step(BoundSet{Engine: "llm", Epoch: h.engines[0].epoch, Bound: 60 * size.GiB})
	h.Step(Hello{Trainer: "t0", Job: "gpt", Device: "d0", Floor: 96 * mib, FloorKnown: true})
	h.Step(Acked{Trainer: "t0", Epoch: h.trainers[0].epoch})
	h.Step(TrainerSeen{Trainer: "t0", Bytes: 96 * mib})
	for i := range 1000 {
		h.Step(Arrived{At: time.Duration(i) * ms, ID: id(i), Engine: "llm", PromptBytes: 1400, Slack: 100 * ms})
	}
	return h
}

func id(i int) RequestID { return RequestID("req-" + strconv.Itoa(i)) }

func BenchmarkStepArrivedAndFinished(b *testing.B) {
	h := busy(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		at := time.Second + time.Duration(i)*ms
		h.Step(Arrived{At: at, ID: "new", Engine: "llm", PromptBytes: 1400, Slack: 100 * ms})
		h.Step(Finished{At: at, ID: "new", PromptTokens: 300, OutputTokens: 60})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/step")
}

// BenchmarkStepThatPricesTheReserve is the dearest step: it prices, as one in
// every insureEvery does, under slow handovers, so that there is much to choose.
func BenchmarkStepThatPricesTheReserve(b *testing.B) {
	for _, live := range []int{50, 1000} {
		b.Run(strconv.Itoa(live), func(b *testing.B) {
			h := busy(b)
			for i := live; i < 1000; i++ {
				h.Step(Finished{At: time.Second, ID: id(i), PromptTokens: 300, OutputTokens: 60})
			}
			for range 1000 {
				h.times.Learn(300 * ms)
			}
			h.Step(Priced{At: time.Second, Sample: 0.001, Miss: 1})
			h.Step(TrainerRated{At: time.Second, Trainer: "t0", Curve: []Rate{{size.GiB, 10}, {60 * size.GiB, 40}}})
			h.trainers[0].wear.each = 20 * ms // so that courses are compared
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				at := time.Second + time.Duration(i)*insureEvery
				h.Step(Arrived{At: at, ID: "new", Engine: "llm", PromptBytes: 1400, Slack: 100 * ms, Promised: true})
				h.Step(Finished{At: at, ID: "new", PromptTokens: 300, OutputTokens: 60})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/pair")
		})
	}
}

func BenchmarkStepProgressedBatch(b *testing.B) {
	h := busy(b)
	counts := make([]Progress, 1000)
	for k := range counts {
		counts[k].ID = id(k)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		for k := range counts {
			counts[k].OutputTokens = i
		}
		h.Step(Progressed{At: time.Second + time.Duration(i)*ms, Counts: counts})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(1000*b.N), "ns/request")
}

func BenchmarkStepEngineSeen(b *testing.B) {
	h := busy(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		h.Step(EngineSeen{At: time.Second + time.Duration(i)*ms, Engine: "llm", Held: 20 * size.GiB, Needed: 20 * size.GiB, Bound: 60 * size.GiB, Running: 1000})
	}
}

// BenchmarkStepWithFiftyLive is a decision with its whole forecast, as most
// sidecars make it.
func BenchmarkStepWithFiftyLive(b *testing.B) {
	h := busy(b)
	for i := 50; i < 1000; i++ {
		h.Step(Finished{At: time.Second, ID: id(i), PromptTokens: 300, OutputTokens: 60})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		h.Step(Tick{At: time.Second + time.Duration(i)*ms})
	}
}

func BenchmarkStepTick(b *testing.B) {
	h := busy(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		h.Step(Tick{At: time.Second + time.Duration(i)*ms})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	h := busy(b)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		_ = h.Snapshot()
	}
}
