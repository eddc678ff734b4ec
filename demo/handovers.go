package demo

import (
	"time"

	"github.com/lull-project/lull/size"
)

// HandoverSummary is how memory changed hands in the phase lull; latencies are
// from decision to the device's confirmation, over shrinks_freed only.
type HandoverSummary struct {
	Shrinks      int     `json:"shrinks"`
	ShrinksFreed int     `json:"shrinks_freed"`
	Grows        int     `json:"grows"`
	Rebounds     int     `json:"rebounds"`
	MeanMS       float64 `json:"mean_ms"`
	P50MS        float64 `json:"p50_ms"`
	P99MS        float64 `json:"p99_ms"`
	MaxMS        float64 `json:"max_ms"`
	BytesMean    float64 `json:"bytes_mean"`
	// NaiveMicrobatchMeanMS is the same latency in the phase naive, and
	// NaiveBatchMeanMS the time from each of its decisions to the end of the
	// optimizer step that was running.
	NaiveMicrobatchMeanMS float64        `json:"naive_microbatch_mean_ms"`
	NaiveBatchMeanMS      float64        `json:"naive_batch_mean_ms"`
	NaiveShrinksFreed     int            `json:"naive_shrinks_freed"`
	MicrobatchMSMean      float64        `json:"microbatch_ms_mean"`
	How                   map[string]int `json:"how"`
	Recomputed            int            `json:"recomputed"`
	WorkLostSampleS       float64        `json:"work_lost_sample_s"`
}

// hows are the words for the ways in which an order was met.
var hows = []string{"cached", "drop", "suspend", "discard", "finish", "nothing", "part", "superseded"}

// freedLeast is the fall of the trainer's bytes that makes a shrink one that
// freed memory: one page of KV cache. Below it an order met a trainer that held
// no more than the new budget.
const freedLeast = 2 * size.MiB

// shrink is one finished shrink.
type shrink struct {
	Decided time.Time
	Took    time.Duration
	Freed   size.Bytes
	How     string
}

// freedShrinks are the confirmed shrinks by which the trainer gave memory back
// and after which the device showed less.
func freedShrinks(events []sidecarEvent) []shrink {
	var list []shrink
	for _, e := range events {
		if e.Kind != "handover" || !e.Shrink || size.Bytes(e.Freed) < freedLeast {
			continue
		}
		if e.Result != "confirmed" && e.Result != "late" || e.How == "nothing" || e.How == "superseded" {
			continue
		}
		took := time.Duration(e.TookUS) * time.Microsecond
		list = append(list, shrink{Decided: e.at().Add(-took), Took: took, Freed: size.Bytes(e.Freed), How: e.How})
	}
	return list
}

// summariseHandovers needs the phases lull and naive; what a missing one would
// have given stays 0.
func summariseHandovers(runs []*phaseRun) HandoverSummary {
	h := HandoverSummary{How: map[string]int{}}
	for _, how := range hows {
		h.How[how] = 0
	}
	for _, r := range runs {
		switch r.Phase.Name {
		case Lull:
			h.lull(r)
		case Naive:
			h.naive(r)
		}
	}
	return h
}

func (h *HandoverSummary) lull(r *phaseRun) {
	for _, e := range r.Events {
		switch {
		case e.Kind != "handover":
		case !e.Shrink:
			if e.Result == "confirmed" {
				h.Grows++
			}
		default:
			h.Shrinks++
			if _, known := h.How[e.How]; known {
				h.How[e.How]++
			}
		}
	}
	var took []time.Duration
	var freed size.Bytes
	for _, s := range freedShrinks(r.Events) {
		took = append(took, s.Took)
		freed += s.Freed
	}
	h.ShrinksFreed = len(took)
	if n := len(took); n > 0 {
		h.BytesMean = float64(freed) / float64(n)
	}
	q := quantilesMS(took)
	h.MeanMS, h.P50MS, h.P99MS, h.MaxMS = ms(mean(took)), q.P50, q.P99, q.Max
	h.Rebounds = r.Verdict.Rebounds
	h.MicrobatchMSMean = ms(r.Report.MicrobatchTook)
	h.Recomputed, h.WorkLostSampleS = r.Report.Recomputed, r.Report.WorkLostSampleSeconds
}

func (h *HandoverSummary) naive(r *phaseRun) {
	var took, batch []time.Duration
	for _, s := range freedShrinks(r.Events) {
		took = append(took, s.Took)
		if end, ok := r.Train.batchEnd(s.Decided); ok {
			batch = append(batch, end.Sub(s.Decided))
		}
	}
	h.NaiveShrinksFreed = len(took)
	h.NaiveMicrobatchMeanMS, h.NaiveBatchMeanMS = ms(mean(took)), ms(mean(batch))
}
