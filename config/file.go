package config

import (
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// File is lull.yaml.
type File struct {
	// Listen is the address that clients use instead of the server's own.
	Listen string `koanf:"listen"`
	// StateDir keeps the device locks and session counters. It must survive a
	// restart of the sidecar, and only there does it matter.
	StateDir  string    `koanf:"state_dir"`
	Admin     Admin     `koanf:"admin"`
	Devices   []Device  `koanf:"devices"`
	Engines   []Engine  `koanf:"engines"`
	Trainers  Trainers  `koanf:"trainers"`
	Policy    Policy    `koanf:"policy"`
	Admission Admission `koanf:"admission"`
	Auth      Auth      `koanf:"auth"`
	Proxy     Proxy     `koanf:"proxy"`
	SLO       SLO       `koanf:"slo"`
	// Interference needs SLO.
	Interference Interference `koanf:"interference"`
	Telemetry    Telemetry    `koanf:"telemetry"`
}

// Admin is the operator's listener.
type Admin struct {
	// Listen is the address of /healthz, /readyz, /metrics and /api/v1; keep it on
	// loopback, it has no authentication.
	Listen string `koanf:"listen"`
}

// Device is one device whose bytes engines and trainers share.
type Device struct {
	ID string `koanf:"id"`
	// Kind is host or nvidia.
	Kind string `koanf:"kind"`
	// GPU is which one, for the kind nvidia.
	GPU GPU `koanf:"gpu"`
	// Capacity is what may be used in all, of a GPU 0 for all that it has; Headroom is
	// kept free of it: where the file says nothing 64 MiB of host memory, 512 MiB of a
	// GPU. Too low a headroom and a late reading runs into the end, too high and it lies
	// idle.
	Capacity size.Bytes `koanf:"capacity"`
	Headroom size.Bytes `koanf:"headroom"`
}

// Engine is one LLM server.
type Engine struct {
	Name string `koanf:"name"`
	// Kind is one of engine.Kinds.
	Kind string `koanf:"kind"`
	// URL is http://host:port, https://host:port or unix:///path/of/the/socket.
	URL string `koanf:"url"`
	// TLS is for an https URL whose server the system's CAs do not vouch for, or that
	// wants a client certificate.
	TLS endpoint.TLS `koanf:"tls"`
	// Devices are the ids of the devices that its KV cache takes bytes from: alike, or by
	// Stages.
	Devices []string `koanf:"devices"`
	// Stages are the pipeline stages of a server whose devices do not hold alike many
	// bytes of a token, in their order. Pool, BytesPerToken and MinBound are then those
	// of the fullest stage.
	Stages []Stage `koanf:"stages"`
	// PID is the server's process; 0 finds it by the port or socket of URL.
	PID int `koanf:"pid"`
	// Pool, Resident, Start, BytesPerToken and BlockTokens replace what the engine
	// says or the device shows; 0 leaves it to them.
	Pool          size.Bytes `koanf:"pool"`
	Resident      size.Bytes `koanf:"resident"`
	Start         size.Bytes `koanf:"start"`
	BytesPerToken size.Bytes `koanf:"bytes_per_token"`
	BlockTokens   int        `koanf:"block_tokens"`
	// MinBound is never undercut, so that the engine can always serve one request
	// without a handover. 0 means the largest request that it accepts, at most an
	// eighth of the pool. Larger lends less, smaller can leave a long request
	// waiting behind a trainer that does not answer.
	MinBound size.Bytes `koanf:"min_bound"`
	// AllocDelay is the engine's own delay from a request's arrival to its first
	// KV block, during which a handover costs the request nothing.
	AllocDelay time.Duration `koanf:"alloc_delay"`
	// Idle is, for vllm-sleep and for Models, how long it must have been without a request
	// before its pool is let go; 0 means 30 s. Shorter lends more, and more requests wait until
	// the pool is back.
	Idle time.Duration `koanf:"idle"`
	// Models are, for Triton, those of its models that Lull unloads in lulls and loads
	// again for their next request; a request waits at most Await for that, 0 means 1
	// minute. Warm is how many bytes of idle ones stay loaded: those for which most
	// requests are expected.
	Models []Model       `koanf:"models"`
	Await  time.Duration `koanf:"await"`
	Warm   size.Bytes    `koanf:"warm"`
	// Page is lull-vllm's page, an absolute path that ends in .page; empty means
	// /dev/shm/lull-UID/vllm.page, which is the plugin's default too.
	Page string `koanf:"page"`
	// Segment is kvcached's shared-memory segment, /dev/shm/ and the server's
	// KVCACHED_IPC_NAME; kind kvcached needs it.
	Segment string `koanf:"segment"`
	// MetricsURL is where Triton publishes its metrics; empty means port 8002 of the
	// host of URL.
	MetricsURL string `koanf:"metrics_url"`
}

// Model is one model of a server: its name there and what it takes of each device
// while it is loaded.
type Model struct {
	Name  string     `koanf:"name"`
	Bytes size.Bytes `koanf:"bytes"`
}

// Stage is one pipeline stage of a server.
type Stage struct {
	// Devices are those of the server's that hold its layers, all alike.
	Devices []string `koanf:"devices"`
	// BytesPerToken is the KV of a token on each of them; lull forecast --geometry
	// config.json --pp N says it.
	BytesPerToken size.Bytes `koanf:"bytes_per_token"`
	// Pool is the most KV that each of them may hold, 0 what the server's pool takes
	// there. The stage whose pool has fewest tokens bounds the server.
	Pool size.Bytes `koanf:"pool"`
}

// Trainers is the control channel.
type Trainers struct {
	Socket string `koanf:"socket"`
	// AllowUIDs may connect beside the sidecar's own user and root.
	AllowUIDs []int         `koanf:"allow_uids"`
	Heartbeat time.Duration `koanf:"heartbeat"`
	// Lease is how long a trainer keeps its last grant once the sidecar is gone; at
	// least trainer.MissedHeartbeats heartbeats, or a trainer would give up memory
	// before it knows.
	Lease time.Duration `koanf:"lease"`
	// OnStop is drain or keep: what a trainer is told when the sidecar is stopped.
	// drain asks it to checkpoint and leave; keep lets it train on, on its last grant
	// for the lease and then on its min budget, until a sidecar is there again.
	OnStop string `koanf:"on_stop"`
}

// The words of Trainers.OnStop.
const (
	OnStopDrain = "drain"
	OnStopKeep  = "keep"
)

// Policy is how the elastic bytes are shared.
type Policy struct {
	Mode         handover.Mode `koanf:"mode"`
	StaticKVFrac float64       `koanf:"static_kv_frac"`
	Quantum      size.Bytes    `koanf:"quantum"`
	Reserve      size.Bytes    `koanf:"reserve"`
	Prices       Prices        `koanf:"prices"`
	ShrinkLimit  ShrinkLimit   `koanf:"shrink_limit"`
	Quantile     float64       `koanf:"quantile"`
	Horizon      time.Duration `koanf:"horizon"`
}

// ShrinkLimit is handover.Limit.
type ShrinkLimit struct {
	PerSecond      float64    `koanf:"per_second"`
	BytesPerSecond size.Bytes `koanf:"bytes_per_second"`
	Arrivals       bool       `koanf:"arrivals"`
}

// Admission is what happens to a request that finds memory short.
type Admission struct {
	Hold       handover.HoldMode `koanf:"hold"`
	Owed       handover.OwedMode `koanf:"owed"`
	Within     time.Duration     `koanf:"within"`
	QueueLimit int               `koanf:"queue_limit"`
}

// Whether Lull does something by itself, and for Interference.Pace by policy.prices.
const (
	Auto   = "auto"
	Never  = "never"
	Priced = "priced"
)

// Interference is what training does with the device's time while requests run.
// It needs objectives: without one nobody can be late.
type Interference struct {
	// Yield stops training at its next block while a request's slack is short.
	Yield string `koanf:"yield"`
	// Pace gives training a duty cycle: auto holds the mean gap between tokens below its
	// objective; priced seeks the duty at which the next point is worth to training what
	// it costs in misses by policy.prices, and moves it by 15 % at random, a second at a
	// time, to measure that.
	Pace string `koanf:"pace"`
	// ProgressFloor is the least duty, 0 to 1: lower protects requests more, and
	// training may then hardly move for as long as the load lasts.
	ProgressFloor float64 `koanf:"progress_floor"`
}

// Proxy is the data path.
type Proxy struct {
	// IdleTimeout ends a transfer on which nothing moved for so long; there is no
	// limit on its whole length.
	IdleTimeout time.Duration `koanf:"idle_timeout"`
	// BodyMemory is what request bodies that are read whole may take together; a
	// body for which there is no room is relayed as it comes and judged by its
	// beginning.
	BodyMemory size.Bytes `koanf:"body_memory"`
	// Usage is pass or inject: inject asks the engine for the usage of a stream
	// whose client said nothing of it, and keeps the answer to itself. Without it
	// tokens are counted as events where the client does not ask.
	Usage string `koanf:"usage"`
	// DrainTimeout is how long open requests may go on after SIGTERM; what is left
	// then is cut, and its client sees that. 0 cuts at once; longer than the
	// supervisor's own patience, and it kills Lull before the trainers are told.
	DrainTimeout time.Duration `koanf:"drain_timeout"`
	// Failover lets the next of the engines serve while one before it is down. All of
	// them must serve the same models.
	Failover bool `koanf:"failover"`
	// Balance says which of the engines that are not down serves a request, with
	// Failover: first, or least_load, the one with the fewest open requests.
	Balance string `koanf:"balance"`
	// UpstreamKeyFile and UpstreamKeyEnv say where the LLM server's own API key is: in
	// a file, or in a variable of the environment. It replaces whatever key a client
	// sent. At most one of them.
	UpstreamKeyFile string `koanf:"upstream_key_file"`
	UpstreamKeyEnv  string `koanf:"upstream_key_env"`
	// TrustForwarded passes Forwarded and X-Forwarded-* of clients on; else they are
	// dropped.
	TrustForwarded bool `koanf:"trust_forwarded"`
}

// Telemetry is what Lull says of itself.
type Telemetry struct {
	// LogLevel is debug, info, warn or error.
	LogLevel string `koanf:"log_level"`
	// Events is a file that gets one JSON line for every order, ack, confirmation,
	// bound, hold and release; empty means none.
	Events string `koanf:"events"`
}
