package trainer

import (
	"time"

	"github.com/lull-project/lull/size"
)

// Version is the protocol's version, said in hello and welcome.
const Version = 1

// Message is one line of the control channel. PROTOCOL.md says what each field
// means, who sends it and in what unit it is written.
type Message interface {
	// Type is the wire's word for it.
	Type() string
	write(w *writer)
}

// MemoryModel is bytes(b) = max(Floor, Base + Slope·b) of a microbatch of b
// samples, with the bytes by which it may be too low.
type MemoryModel struct {
	Base  float64 `json:"base_bytes"`
	Slope float64 `json:"slope_bytes"`
	Floor float64 `json:"floor_bytes"`
	Error float64 `json:"error_bytes"`
}

// Progress is how far a job is. Loss is nil until there is one.
type Progress struct {
	Samples, Step int64
	Loss          *float64
}

// Span is one part of an order's work, offset from the order's arrival.
type Span struct {
	Name         string
	Offset, Took time.Duration
}

// Cost is what one way of freeing costs each time: microseconds, microseconds per
// MiB, and seconds of work lost.
type Cost struct {
	How            string  `json:"how"`
	FixedUS        float64 `json:"fixed_us"`
	USPerMiB       float64 `json:"us_per_mib"`
	LostSampleSecs float64 `json:"lost_sample_s"`
}

// RatePoint is one point of the measured curve of speed against memory: the peak
// bytes of a size of microbatch and its speed.
type RatePoint struct {
	Bytes         size.Bytes `json:"bytes"`
	SamplesPerSec float64    `json:"samples_per_s"`
}

// Hello is a trainer's first line: what it is and what it holds now.
type Hello struct {
	Version     int64
	Job         string
	Rank, World int64
	PID         int64
	Device      string
	// Ceiling, Held and LastEpoch are the trainer's own words about now.
	Ceiling, Held size.Bytes
	LastEpoch     uint64
	// Baseline is what the process had before it took device memory; 0 on CUDA.
	Baseline size.Bytes
	// Floor is what it cannot give back; unknown until its dry step.
	Floor       size.Bytes
	FloorKnown  bool
	MinBudget   size.Bytes
	Suspended   size.Bytes
	MemoryModel *MemoryModel
	Progress    *Progress
	// Token is the shared secret of a TCP connection.
	Token string
}

// Welcome is the sidecar's answer to hello.
type Welcome struct {
	Version          int64
	Session          uint32
	Heartbeat, Lease time.Duration
}

// Budget is an order: hold at most Bytes of activation memory from now on.
type Budget struct {
	Epoch uint64
	Bytes size.Bytes
	// Within is the latest useful time from send; 0 means no hurry.
	Within time.Duration
	Reason string
	// Floor is the floor in force with this order; with reason floor it answers a
	// Request that asked for no more.
	Floor       size.Bytes
	Traceparent string
}

// Ack answers a Budget: a promise to hold at most Held until the next grant.
type Ack struct {
	Epoch            uint64
	Held             size.Bytes
	Waited, Freed    time.Duration
	How              string
	SamplesDiscarded int64
	Spans            []Span
}

// Request asks for a higher floor before the trainer takes it.
type Request struct{ Floor size.Bytes }

// Refused is the sidecar's no to a Request; Floor stays in force.
type Refused struct {
	Floor  size.Bytes
	Reason string
}

// Report is what the trainer did lately: advice, never a promise.
type Report struct {
	// Bytes is memory by category.
	Bytes                 map[string]size.Bytes `json:"bytes"`
	Samples               int64                 `json:"samples"`
	Step                  int64                 `json:"step"`
	Microbatch            int64                 `json:"microbatch"`
	MicrobatchTook        time.Duration         `json:"microbatch_ns"`
	BatchTook             time.Duration         `json:"batch_ns"`
	Loss                  *float64              `json:"loss"`
	RateCurve             []RatePoint           `json:"rate_curve"`
	Costs                 []Cost                `json:"costs"`
	Recomputed            int64                 `json:"recomputed"`
	WorkLostSampleSeconds float64               `json:"work_lost_sample_s"`
	MemoryModel           *MemoryModel          `json:"memory_model"`
	// ModelError is the bytes by which the memory model was too low lately.
	ModelError *float64 `json:"model_error_bytes"`
}

// Pace is a duty cycle, 0 to 1; it goes back to 1 when Lease ends (0: never).
type Pace struct {
	Duty   float64
	Reason string
	Lease  time.Duration
}

// Yield stops training at the next block until a Pace comes or Lease ends.
type Yield struct {
	Lease  time.Duration
	Reason string
}

// Drain asks the trainer to checkpoint and leave.
type Drain struct{ Reason string }

// Bye is a clean end, from either side.
type Bye struct{ Reason string }

// Ping is the sidecar's heartbeat.
type Ping struct{ Seq int64 }

// Pong answers a Ping.
type Pong struct{ Seq int64 }

// ErrorLine answers a line that could not be used; it is never answered itself.
type ErrorLine struct{ What, Where, Rule string }

// Type is "hello".
func (Hello) Type() string { return "hello" }

// Type is "welcome".
func (Welcome) Type() string { return "welcome" }

// Type is "budget".
func (Budget) Type() string { return "budget" }

// Type is "ack".
func (Ack) Type() string { return "ack" }

// Type is "request".
func (Request) Type() string { return "request" }

// Type is "refused".
func (Refused) Type() string { return "refused" }

// Type is "report".
func (Report) Type() string { return "report" }

// Type is "pace".
func (Pace) Type() string { return "pace" }

// Type is "yield".
func (Yield) Type() string { return "yield" }

// Type is "drain".
func (Drain) Type() string { return "drain" }

// Type is "bye".
func (Bye) Type() string { return "bye" }

// Type is "ping".
func (Ping) Type() string { return "ping" }

// Type is "pong".
func (Pong) Type() string { return "pong" }

// Type is "error".
func (ErrorLine) Type() string { return "error" }
