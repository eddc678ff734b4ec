package handover

import (
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// Event is one thing that happened. Every event carries the time at which it
// did; times never go back from one Step to the next.
type Event interface{ when() At }

// Tick tells the core that time has passed. The sidecar sends one when the time
// named by the last Wake action has come.
type Tick struct{ At At }

// ClockSeen says how late in the day it is, on the clock that goes by the habits of
// who sends requests. The core reads none itself.
type ClockSeen struct {
	At    At
	OfDay time.Duration
}

// Arrived is a request that the proxy has read and wants to forward.
type Arrived struct {
	At     At
	ID     RequestID
	Engine EngineID
	// Model is the one that was asked for; answers are learned by it. It may be empty.
	Model string
	// PromptBytes is the length of the prompt's text in the body. The core turns
	// it into tokens by what it learns from Finished.
	PromptBytes int
	// ToolBytes are those of PromptBytes that describe tools, Media counts what the
	// prompt has beside text.
	ToolBytes int
	Media     kvbudget.Media
	// PromptTokens, when above 0, counts the prompt exactly (it was given as token
	// ids) and replaces the estimate from PromptBytes.
	PromptTokens int
	// Prefix marks the prompt's beginning, for what it has in common with others.
	Prefix []kvbudget.Mark
	// MaxTokens is the answer's limit as the client gave it; 0 means none given.
	MaxTokens int
	// Sequences is n (or best_of), the sequences that the engine will run; 0 is 1.
	Sequences int
	// NeedBytes, when above 0, is the request's KV need at its end and replaces
	// the core's own estimate.
	NeedBytes Bytes
	// Slack is the time that the TTFT objective can spare for waiting; below 0 it is
	// lost already, and nothing that memory does saves it.
	Slack time.Duration
	// Tier names the request's price of a miss, Promised says that it was promised a
	// TTFT at all.
	Tier     string
	Promised bool
	// CanReroute says that another engine could serve it; no decision uses it yet.
	CanReroute bool
}

// Progressed reports generated tokens of running requests, batched: one event
// for all that moved since the last.
type Progressed struct {
	At     At
	Counts []Progress
}

// Progress is one request's total of generated tokens (or chunks, until usage
// corrects them).
type Progress struct {
	ID           RequestID
	OutputTokens int
}

// Finished is a request that ended, for whatever reason; it is sent exactly
// once for every Arrived, also for those that were rejected or whose client
// left while held. Token counts are from usage where it came, else 0.
type Finished struct {
	At           At
	ID           RequestID
	PromptTokens int
	OutputTokens int
	// CachedTokens are those of PromptTokens that the server found cached, 0 also where
	// it does not say.
	CachedTokens int
	// Refused says that the server would not run it (a status of 4xx and no token):
	// nothing is learned from it, not even that it came.
	Refused bool
}

// EngineSeen is what an engine said of itself, all devices of it alike: bytes
// are per device.
type EngineSeen struct {
	At     At
	Engine EngineID
	// Held is KV physically mapped now, Evictable the part of it that only
	// caches, Bound the bound that the engine says it obeys (0 unknown).
	Held, Evictable, Bound Bytes
	// Needed is what live requests use of Held (logical use).
	Needed Bytes
	// Cached is the part of Evictable that holds prefixes, PrefixQueries and PrefixHits
	// the tokens looked up there and found since the engine's start; 0 where it does
	// not say.
	Cached                    Bytes
	PrefixQueries, PrefixHits uint64
	// Resident is weights, context and workspace as the device shows them: process
	// bytes minus Held, read consistently; 0 when this sample cannot say.
	Resident Bytes
	// Running and Waiting count requests in the engine.
	Running, Waiting int
	// Short is what waiting requests lack beyond Bound, when the engine can say;
	// 0 otherwise.
	Short Bytes
	// BoundEpoch is the epoch of Bound, 0 when the engine does not keep one. A
	// sample older than the last confirmed bound is dropped, and one of the last
	// SetBound's epoch confirms it.
	BoundEpoch Epoch
}

// AllocDelaySeen is a measured delay from a request's forwarding to the first
// block that the idle engine took for it.
type AllocDelaySeen struct {
	At     At
	Engine EngineID
	Delay  time.Duration
}

// EngineDown is an engine that died or stopped answering. Training makes room
// for its whole start before anything grows again.
type EngineDown struct {
	At     At
	Engine EngineID
	// Dead says that its process is gone, and its bytes with it; one that only stopped
	// answering may hold them still. It may come later, in a second EngineDown.
	Dead bool
}

// EngineUnread is an engine whose last reading failed: it did not answer in time,
// or what it said was not understood. Nothing is known against its serving, so
// only growth waits, until it is seen again.
type EngineUnread struct {
	At     At
	Engine EngineID
}

// EngineUp is an engine that answers (again). Its bound is fenced before
// anything else.
type EngineUp struct {
	At     At
	Engine EngineID
}

// BoundSet is the engine's confirmation of a SetBound, with what it holds now.
type BoundSet struct {
	At     At
	Engine EngineID
	Epoch  Epoch
	Bound  Bytes
	Held   Bytes
}

// BoundFailed is a SetBound that got no answer or a refusal.
type BoundFailed struct {
	At     At
	Engine EngineID
	Epoch  Epoch
}

// Hello is a trainer that connected, or connected again. Ceiling, Held and
// LastEpoch are its own words about now. A job with several ranks or devices
// sends one each.
type Hello struct {
	At      At
	Trainer TrainerID
	// Job groups the trainers whose order is one order: it is confirmed when each
	// of them is.
	Job    string
	Device DeviceID
	// Floor is the bytes that the trainer cannot give back; FloorKnown is false
	// until its dry step has measured it, and nothing is granted before.
	Floor      Bytes
	FloorKnown bool
	Ceiling    Bytes
	Held       Bytes
	LastEpoch  Epoch
	// MinBudget is the least activation memory with which it can go on at all.
	MinBudget Bytes
	// Suspended is what it keeps when ordered to 0.
	Suspended Bytes
}

// Acked is a trainer's answer to an Order: a promise that it holds at most Held
// activation bytes until the next grant.
type Acked struct {
	At      At
	Trainer TrainerID
	Epoch   Epoch
	Held    Bytes
	// How is the trainer's word for the way: cached, drop, suspend, discard,
	// finish, nothing or superseded.
	How string
}

// FloorAsked is a trainer asking for a higher floor before it takes it.
type FloorAsked struct {
	At      At
	Trainer TrainerID
	Floor   Bytes
}

// TrainerGone is a trainer whose connection ended. Its bytes count until the
// device shows them gone.
type TrainerGone struct {
	At      At
	Trainer TrainerID
	// Left says that it said goodbye: it holds to no budget any more and is charged
	// what the device shows. Otherwise it keeps its last grant, and is charged that.
	Left bool
}

// TrainerSeen is the device's own word about a trainer: all its bytes on the
// device (floor and activations), beyond its baseline. After TrainerGone, 0
// says that the process has left the device.
type TrainerSeen struct {
	At      At
	Trainer TrainerID
	Bytes   Bytes
}

// CapacitySeen is a device whose capacity changed, or is read for the first
// time after the config.
type CapacitySeen struct {
	At       At
	Device   DeviceID
	Capacity Bytes
}

func (e Tick) when() At           { return e.At }
func (e ClockSeen) when() At      { return e.At }
func (e Arrived) when() At        { return e.At }
func (e Progressed) when() At     { return e.At }
func (e Finished) when() At       { return e.At }
func (e EngineSeen) when() At     { return e.At }
func (e AllocDelaySeen) when() At { return e.At }
func (e EngineDown) when() At     { return e.At }
func (e EngineUnread) when() At   { return e.At }
func (e EngineUp) when() At       { return e.At }
func (e BoundSet) when() At       { return e.At }
func (e BoundFailed) when() At    { return e.At }
func (e Hello) when() At          { return e.At }
func (e Acked) when() At          { return e.At }
func (e FloorAsked) when() At     { return e.At }
func (e TrainerGone) when() At    { return e.At }
func (e TrainerSeen) when() At    { return e.At }
func (e CapacitySeen) when() At   { return e.At }
