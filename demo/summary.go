package demo

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/lull-project/lull/size"
)

// Summary is summary.json.
type Summary struct {
	// Engine is the LLM server, one of Engines.
	Engine string `json:"engine"`
	// Study is what the phases compare.
	Study        string         `json:"study"`
	DeviceBytes  int64          `json:"device_bytes"`
	ElasticBytes int64          `json:"elastic_bytes"`
	Phases       []PhaseSummary `json:"phases"`
	// NotMeasured are the phases that were asked for and failed.
	NotMeasured []MissingPhase  `json:"not_measured,omitempty"`
	Handover    HandoverSummary `json:"handover"`
	Audit       AuditSummary    `json:"audit"`
	Bars        []Bar           `json:"bars"`
	// What the figures need beside them.
	FloorBytes int64  `json:"floor_bytes"`
	Seed       uint64 `json:"seed"`
	Trace      string `json:"trace"`
	Machine    string `json:"machine"`
	// Busy warns of other work on the machine, empty when there was little.
	Busy      string `json:"busy,omitempty"`
	Placement string `json:"placement"`
	Command   string `json:"command"`
	// SameLossDiff is the largest relative difference of the loss at the same
	// optimizer step between phases: every phase trains the same job.
	SameLossDiff float64 `json:"same_step_loss_max_rel_diff"`
	// SameLossSteps is how many steps could be compared.
	SameLossSteps int `json:"same_step_loss_steps"`
	// TokenIdentity compares answers between phases; nil where the server says no
	// token ids.
	TokenIdentity *TokenIdentity `json:"token_identity,omitempty"`
}

// PhaseSummary is one phase.
type PhaseSummary struct {
	Name                 string    `json:"name"`
	Requests             int       `json:"requests"`
	Errors               int       `json:"errors"`
	TTFTSLOMS            float64   `json:"ttft_slo_ms"`
	TBTSLOMS             float64   `json:"tbt_slo_ms"`
	TTFTAttainment       float64   `json:"ttft_attainment"`
	TBTAttainment        float64   `json:"tbt_attainment"`
	TBTRequestAttainment float64   `json:"tbt_request_attainment"`
	TTFTMS               Quantiles `json:"ttft_ms"`
	TBTMS                Quantiles `json:"tbt_ms"`
	// HeldMS is over the requests that the sidecar held; HeldRequests counts them.
	HeldMS           Quantiles `json:"held_ms"`
	HeldRequests     int       `json:"held_requests"`
	TrainSamples     float64   `json:"train_samples"`
	TrainSamplesPerS float64   `json:"train_samples_per_s"`
	// TrainBytesMean is the mean activation memory granted to training (its ceiling),
	// TrainHeldBytesMean the mean that the device showed beyond the floor.
	TrainBytesMean     float64 `json:"train_bytes_mean"`
	TrainHeldBytesMean float64 `json:"train_held_bytes_mean"`
	LossFirst          float64 `json:"loss_first"`
	LossLast           float64 `json:"loss_last"`
	// SendLateMS is how late requests left the load generator.
	SendLateMS Quantiles `json:"send_late_ms"`
	Gaps       int       `json:"gaps"`
	// StreamsMean is how many answers were being written when a gap ended, the mean
	// over all gaps. SameStreamsSlowdown is by what factor gaps are longer than those
	// of inference only at the same number; 0 where that phase was not run.
	StreamsMean         float64 `json:"streams_mean"`
	SameStreamsSlowdown float64 `json:"same_streams_slowdown"`
	Violations          int     `json:"violations"`
}

// AuditSummary is the auditor's count over all phases.
type AuditSummary struct {
	Samples   int `json:"samples"`
	Discarded int `json:"discarded"`
	// Lost are the readings in which a process could not be read.
	Lost           int     `json:"lost"`
	MaxDeviceBytes int64   `json:"max_device_bytes"`
	Violations     int     `json:"violations"`
	SamplesPerS    float64 `json:"samples_per_s_min"`
	Cgroup         string  `json:"cgroup"`
}

// summarisePhase turns what was seen into figures. slo is the same in all
// phases.
func summarisePhase(run *phaseRun, slo Objectives) PhaseSummary {
	s := PhaseSummary{
		Name: run.Phase.Name, Requests: len(run.Results), TTFTSLOMS: ms(slo.TTFT), TBTSLOMS: ms(slo.TBT),
		Violations: len(run.Verdict.Violations),
	}
	latencies(&s, run.Results, slo)
	held := heldTimes(run.Events)
	s.HeldMS, s.HeldRequests = quantilesMS(held), len(held)
	if run.Train != nil {
		training(&s, run)
	}
	return s
}

// latencies fills what clients felt. An error or a missing first token is a
// miss of every objective.
func latencies(s *PhaseSummary, results []Result, slo Objectives) {
	var ttfts, gaps, late []time.Duration
	var ttftHit, gapHit, gapMiss, meanHit, means int
	for _, r := range results {
		late = append(late, r.Sent.Sub(r.Due))
		ttft, ok := r.TTFT()
		if ok {
			ttfts = append(ttfts, ttft)
		}
		own := r.Gaps()
		gaps = append(gaps, own...)
		for _, g := range own {
			if g <= slo.TBT {
				gapHit++
			}
		}
		if r.Err != nil {
			s.Errors++
			gapMiss++ // the chunk that never came
			means++
			continue
		}
		if ok && ttft <= slo.TTFT {
			ttftHit++
		}
		if len(own) > 0 {
			means++
			if mean(own) <= slo.TBT {
				meanHit++
			}
		}
	}
	s.TTFTAttainment = fraction(ttftHit, len(results))
	s.TBTAttainment = fraction(gapHit, len(gaps)+gapMiss)
	s.TBTRequestAttainment = fraction(meanHit, means)
	s.TTFTMS, s.TBTMS, s.SendLateMS = quantilesMS(ttfts), quantilesMS(gaps), quantilesMS(late)
	s.Gaps = len(gaps)
}

// heldTimes pairs the sidecar's hold and release (or reject) events.
func heldTimes(events []sidecarEvent) []time.Duration {
	var held []time.Duration
	since := map[string]time.Time{}
	for _, e := range events {
		switch e.Kind {
		case "hold":
			since[e.ID] = e.at()
		case "release", "reject":
			if from, ok := since[e.ID]; ok {
				held = append(held, e.at().Sub(from))
				delete(since, e.ID)
			}
		}
	}
	return held
}

// training fills what the job did inside the window.
func training(s *PhaseSummary, run *phaseRun) {
	samples := run.Train.samplesAt(run.End) - run.Train.samplesAt(run.Start)
	s.TrainSamples = math.Round(samples*10) / 10
	s.TrainSamplesPerS = round4(samples / run.End.Sub(run.Start).Seconds())
	s.TrainBytesMean = math.Round(run.Ceilings.mean(run.Start, run.End))
	s.TrainHeldBytesMean = math.Round(run.Verdict.heldMean(run.Device, run.Start, run.End))
	if steps := run.Train.between(run.Start, run.End); len(steps) > 0 {
		s.LossFirst, s.LossLast = round4(steps[0].Loss), round4(steps[len(steps)-1].Loss)
	}
}

// summariseAudit adds the phases up.
func summariseAudit(runs []*phaseRun) AuditSummary {
	var a AuditSummary
	for _, r := range runs {
		v := r.Verdict
		a.Samples += len(v.Samples)
		a.Discarded += v.Discarded
		a.Lost += v.Lost
		a.MaxDeviceBytes = max(a.MaxDeviceBytes, int64(v.MaxDevice))
		a.Violations += len(v.Violations)
		if a.SamplesPerS == 0 || v.Rate < a.SamplesPerS {
			a.SamplesPerS = math.Round(v.Rate*10) / 10
		}
		a.Cgroup = r.Cgroup.note(v.Samples)
	}
	return a
}

// sameStepLoss compares the loss of the same optimizer step across phases.
func sameStepLoss(runs []*phaseRun) (diff float64, steps int) {
	first := map[int]float64{}
	for _, r := range runs {
		if r.Train == nil {
			continue
		}
		for _, l := range r.Train.steps {
			want, ok := first[l.Step]
			if !ok {
				first[l.Step] = l.Loss
				continue
			}
			steps++
			diff = max(diff, math.Abs(l.Loss-want)/math.Abs(want))
		}
	}
	return diff, steps
}

func fraction(hit, of int) float64 {
	if of == 0 {
		return 0
	}
	return round4(float64(hit) / float64(of))
}

func bytesOf(n int64) size.Bytes { return size.Bytes(n) }

// phase finds a phase by name.
func (s Summary) phase(name string) (PhaseSummary, bool) {
	for _, p := range s.Phases {
		if p.Name == name {
			return p, true
		}
	}
	return PhaseSummary{}, false
}

// write writes summary.json.
func (s Summary) write(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("demo: summary: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("demo: summary: %w", err)
	}
	return nil
}
