package model

import "time"

// Kind says what an Event reports.
type Kind uint8

// The kinds of events. Within one slice they come in the order in which the
// caller must perform them: tokens of requests that go on; pages given back;
// last tokens, whose requests therefore end with their memory free; pages given
// back by preemption and pages taken for the step that starts, which must be
// real before the next call of Step.
const (
	// Token: ID has one more token, its Nth. With a Reason it is the last.
	Token Kind = iota + 1
	// Unmap: the last block in Page was given back.
	Unmap
	// Map: Page holds its first block.
	Map
	// Admitted: ID left the queue; N of its tokens were generated before.
	Admitted
	// Preempted: ID lost its pages and waits again with its N tokens.
	Preempted
)

// Reason says why an answer ended.
type Reason uint8

// The reasons, as OpenAI's finish_reason spells them.
const (
	Unfinished Reason = iota
	Stop              // the answer reached its natural length
	Length            // max_tokens, or the model's length, cut it
)

// String is the finish_reason, "" while unfinished.
func (r Reason) String() string {
	switch r {
	case Stop:
		return "stop"
	case Length:
		return "length"
	}
	return ""
}

// Event is one consequence of a step. Which fields count depends on Kind.
type Event struct {
	At     time.Duration
	ID     uint64
	N      int
	Page   int
	Kind   Kind
	Reason Reason
}

// Request is one prompt to answer. Token counts are exact.
type Request struct {
	// ID names the request; the caller keeps it unique among live requests.
	ID           uint64
	PromptTokens int
	// MaxTokens limits the answer; 0 leaves it to the model's length.
	MaxTokens int
	// MinTokens is the least that the answer has.
	MinTokens int
	// OutputTokens is the answer's natural length; 0 draws it.
	OutputTokens int
	// IgnoreEOS makes the answer go on to MaxTokens, whatever its natural length.
	IgnoreEOS bool
}

// Stats are the model's figures at one moment. Counters only rise.
type Stats struct {
	Running, Waiting int
	// MappedPages are the pages that hold a block; BoundPages the most that may.
	MappedPages, BoundPages int
	// ShortPages is by how much mapped pages plus those that waiting requests and
	// unfinished prefills still need for the tokens known now exceed the bound.
	ShortPages int
	// UsedBlocks are the blocks in mapped pages that hold tokens.
	UsedBlocks                    int
	Preemptions, Aborted          uint64
	PromptTokens, GeneratedTokens uint64
	FinishedStop, FinishedLength  uint64
	Steps                         uint64
	// Rebased counts steps that ended later than CatchUp allows.
	Rebased uint64
}
