package demo

import (
	"slices"
	"time"

	"github.com/lull-project/lull/size"
)

// Sizing is the scale of the demo: what is real, what is scaled and by how much.
// The report prints it.
type Sizing struct {
	// Resident is the server's fixed memory, Elastic the bytes that KV cache and
	// activations share, Headroom what is kept free.
	Resident, Elastic, Headroom size.Bytes
	// Quantum is policy.quantum: the unit of budgets, about a fortieth of Elastic.
	Quantum size.Bytes
	// KVPerToken and BlockTokens are the KV geometry.
	KVPerToken  size.Bytes
	BlockTokens int
	// BatchedTokens is the most tokens that the server computes in one step.
	BatchedTokens int
	// Compress divides the trace's times, TokenScale multiplies its token counts.
	Compress, TokenScale float64
	// MaxTokens is the limit that every request states; its true length is shorter
	// and unknown to the sidecar.
	MaxTokens int
	// GPU and Model choose the calibration of the emulator's timing.
	GPU, Model string
	// Layers, Heads, MaxModelLen and EndToken are the real server's model; ByteTokens
	// says that one of its tokens is a byte, not a word.
	Layers, Hidden, Heads, MaxModelLen int
	EndToken                           string
	ByteTokens                         bool
	// MaxPrompt cuts longer prompts; 0 cuts none.
	MaxPrompt int
	// Window is how long each phase sends load.
	Window time.Duration
	// Batch is the trainer's global batch in samples.
	Batch int
}

// DefaultSizing fits two cores and about 2 GiB of memory.
func DefaultSizing() Sizing {
	return Sizing{
		Resident: 256 * size.MiB, Elastic: 640 * size.MiB, Headroom: 64 * size.MiB, Quantum: 16 * size.MiB,
		KVPerToken: 64 * size.KiB, BlockTokens: 32, BatchedTokens: 512,
		Compress: 2.17, TokenScale: 0.2, MaxTokens: 512,
		GPU: "a100", Model: "Llama-2-13B", Batch: 96, Window: 20 * time.Second,
	}
}

// vllmSizing fits two cores of which a real vLLM, the sidecar and the load share
// one: 64 KiB of KV a token, as the emulator has it, come from many small heads
// around a small hidden size, so that there is little to compute.
func vllmSizing() Sizing {
	return Sizing{
		Elastic: 256 * size.MiB, Headroom: 96 * size.MiB, Quantum: 8 * size.MiB, // Resident is measured
		KVPerToken: 64 * size.KiB, BlockTokens: 32, BatchedTokens: 512,
		Compress: 0.5, TokenScale: 0.2, MaxTokens: 256, MaxPrompt: 1024,
		Layers: 8, Hidden: 64, Heads: 32, MaxModelLen: 1536, EndToken: "2", ByteTokens: true,
		Batch: 96, Window: 60 * time.Second,
	}
}

// SizingFor is the scale for one of Engines.
func SizingFor(engine string) Sizing {
	if engine == EngineVLLM {
		return vllmSizing()
	}
	return DefaultSizing()
}

// Capacity is the device for a trainer of the given floor.
func (s Sizing) Capacity(floor size.Bytes) size.Bytes {
	return s.Resident + s.Elastic + floor + s.Headroom
}

// Phase is one way of sharing the device.
type Phase struct {
	Name string
	// Title is the name as the report prints it.
	Title string
	// Mode and StaticKVFrac are the sidecar's policy.
	Mode         string
	StaticKVFrac float64
	// Trains says that a training job runs.
	Trains bool
	// Release is the trainer's way of giving memory back (LULL_RELEASE); empty is
	// its default.
	Release string
	// Yield and Pace are the sidecar's interference keys; empty is never: the study
	// of memory compares memory alone.
	Yield, Pace string
}

// The names of the phases, as summary.json spells them.
const (
	InferenceOnly = "inference-only"
	Static75      = "static-75"
	Static50      = "static-50"
	Naive         = "naive"
	Lull          = "lull"
)

// naiveRelease is LULL_RELEASE for the naive phase: at the end of the running
// microbatch.
const naiveRelease = "microbatch"

// Phases are the five phases in the order in which they run.
func Phases() []Phase {
	return []Phase{
		{Name: InferenceOnly, Title: "inference only", Mode: "static", StaticKVFrac: 1},
		{Name: Static75, Title: "static 75 % to KV", Mode: "static", StaticKVFrac: 0.75, Trains: true},
		{Name: Static50, Title: "static 50 % to KV", Mode: "static", StaticKVFrac: 0.5, Trains: true},
		{Name: Naive, Title: "naive release", Mode: "elastic", Trains: true, Release: naiveRelease},
		{Name: Lull, Title: "Lull", Mode: "elastic", Trains: true},
	}
}

// The phases of the isolation study beside InferenceOnly and Lull.
const (
	Neither   = "neither"
	PaceOnly  = "pace"
	YieldOnly = "yield"
)

// IsolationPhases compare what keeps training's computing out of the requests'
// way, all under the elastic policy.
func IsolationPhases() []Phase {
	const auto = "auto"
	return []Phase{
		{Name: InferenceOnly, Title: "inference only", Mode: "static", StaticKVFrac: 1},
		{Name: Neither, Title: "neither", Mode: "elastic", Trains: true},
		{Name: PaceOnly, Title: "pace only", Mode: "elastic", Trains: true, Pace: auto},
		{Name: YieldOnly, Title: "yield only", Mode: "elastic", Trains: true, Yield: auto},
		{Name: Lull, Title: "both", Mode: "elastic", Trains: true, Yield: auto, Pace: auto},
	}
}

// The studies that --study takes.
const (
	StudyMemory    = "memory"
	StudyIsolation = "isolation"
)

// StudyPhases are the phases of a study.
func StudyPhases(study string) []Phase {
	if study == StudyIsolation {
		return IsolationPhases()
	}
	return Phases()
}

// PhaseNames are the names of a study's phases.
func PhaseNames(study string) []string {
	var names []string
	for _, p := range StudyPhases(study) {
		names = append(names, p.Name)
	}
	return names
}

// selectPhases keeps the phases that are named, in their fixed order.
func selectPhases(study string, names []string) []Phase {
	all := StudyPhases(study)
	if len(names) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(p Phase) bool { return !slices.Contains(names, p.Name) })
}

// Limits of waiting, written once.
const (
	startLimit   = 5 * time.Minute  // a child's ready line, or the trainer's first optimizer step
	drainLimit   = 15 * time.Second // answers still running when the last request was sent
	stopGrace    = 3 * time.Second  // SIGTERM to SIGKILL
	requestLimit = 30 * time.Second // one request, send to end
)
