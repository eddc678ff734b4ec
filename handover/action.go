package handover

import "time"

// Action is one thing to do. The actions of one Step are done in the order of
// the slice; each says what must have happened before it.
type Action interface{ isAction() }

// Order tells a trainer its new budget: a shrink when it is below the last, a
// grant when it is above. It goes out before any SetBound of the same slice.
type Order struct {
	Epoch   Epoch
	Trainer TrainerID
	Bytes   Bytes
	// Within is the latest useful time, from send; 0 means no hurry.
	Within time.Duration
	// Reason is a word of reason.go.
	Reason string
	// Shrink says that memory is to be given back.
	Shrink bool
	// Stage is the pipeline stage that a shrink is for; none where the engine of the device
	// that lacks most has no stages, for grants, and for shrinks that no engine's need asks
	// for (reasons floor and fence).
	Stage StageID
	// Floor is the floor in force with this order; with reason floor it is what
	// was granted, so that a repeated answer is not taken for one to a later ask.
	Floor Bytes
}

// SetBound tells an engine its new kv_bound. A rise is only ever emitted after
// the device has confirmed that the bytes are free.
type SetBound struct {
	Epoch  Epoch
	Engine EngineID
	Bytes  Bytes
	Reason string
}

// ReadTrainer asks the device for a trainer's bytes at once, to confirm an ack
// (or a death); the answer is a TrainerSeen.
type ReadTrainer struct{ Trainer TrainerID }

// Hold parks a request; the proxy keeps it until Release or Reject names it. Stage is
// the tightest pipeline stage of its engine, which it waits for; none where that has
// none.
type Hold struct {
	ID    RequestID
	Stage StageID
}

// Release forwards a request.
type Release struct {
	ID      RequestID
	Outcome Outcome
}

// Reject refuses a request.
type Reject struct {
	ID         RequestID
	Outcome    Outcome
	RetryAfter time.Duration
}

// RefuseFloor answers a FloorAsked that cannot be met; a granted one is an
// Order with reason floor. Floor is the one that stays in force.
type RefuseFloor struct {
	Trainer TrainerID
	Floor   Bytes
}

// Wake asks for a Tick at At, in place of what the last Wake asked for.
type Wake struct{ At At }

// HandoverDone is the record of one finished change of who holds memory, for
// metrics and /api/v1/handovers.
type HandoverDone struct {
	Epoch   Epoch
	Trainer TrainerID
	Shrink  bool
	Reason  string
	Stage   StageID // as in its Order
	// From and To are budgets; Freed is the fall of the trainer's own bytes that
	// the device showed between decision and confirmation.
	From, To, Freed Bytes
	// Decided, Acked and Confirmed are offsets; Acked or Confirmed is 0 when it
	// never came.
	Decided, Acked, Confirmed At
	// Result is confirmed, late (confirmed after Within), superseded, unconfirmed
	// or gone.
	Result string
	How    string
}

func (Order) isAction()        {}
func (SetBound) isAction()     {}
func (ReadTrainer) isAction()  {}
func (Hold) isAction()         {}
func (Release) isAction()      {}
func (Reject) isAction()       {}
func (RefuseFloor) isAction()  {}
func (Wake) isAction()         {}
func (HandoverDone) isAction() {}
