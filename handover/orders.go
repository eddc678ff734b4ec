package handover

import "time"

const (
	// firstResend is how long an order may stay owed before it is repeated under
	// a new epoch, in case it or its ack was lost. Far above a slow release (a
	// microbatch of seconds), since a repeat makes a late ack void.
	firstResend = 5 * time.Second
	maxResend   = 60 * time.Second
	// firstRead is the pause between two looks at the device until an ack's
	// deadline; then the pause doubles up to lastRead.
	firstRead = time.Millisecond
	lastRead  = 250 * time.Millisecond
)

// issue sends one order, under one epoch, to every trainer of the job whose
// plan changed in this Step, and again to those whose last order is not done:
// the new epoch supersedes the old.
func (h *Handover) issue(j *job, reason string, within time.Duration, p proof) {
	epoch := h.nextEpoch()
	for _, t := range j.trainers {
		if t.gone || (!t.wanted && !t.open) {
			t.wanted = false
			continue
		}
		h.tell(t, epoch, reason, within, p)
	}
	j.resend = firstResend
	j.resendAt = h.now + j.resend
}

func (h *Handover) tell(t *trainer, epoch Epoch, reason string, within time.Duration, p proof) {
	to := t.planned()
	renewed := t.open && (!t.wanted || to == t.budget) && t.change != nil
	if !t.wanted { // it is only told again what it was told: not "floor", which answers an asker
		reason = t.change.reason
	}
	if !renewed {
		old := t.change
		h.finish(t, "superseded")
		shrink, stage := to < t.budget, StageID{}
		if shrink && reason != reasonFloor && reason != reasonFence {
			stage = t.dev.shortStage()
		}
		t.change = &change{reason: reason, stage: stage, shrink: shrink, from: t.budget, to: to, bytesAt: t.bytes, decided: h.now, within: within, since: h.now}
		if shrink && t.open && old != nil && old.shrink {
			t.change.since, t.change.failed, t.change.failure = old.since, old.failed, old.failure
		}
	}
	switch {
	case renewed:
		p = t.proof // what it owed it still owes
	case t.change.shrink:
		p = proofFallen
	}
	if !renewed {
		t.asOf = epoch
	}
	if to > t.promise.most {
		t.promise = promise{} // it may have more again
	}
	t.budget, t.wanted = to, false
	t.mayHold = max(t.mayHold, to)
	t.epoch, t.open, t.proof, t.acked, t.proven, t.part = epoch, true, p, false, false, 0
	t.readAt, t.readWait = 0, firstRead
	if t.change.shrink && !renewed {
		t.wear.shrinks++
	}
	h.order(Order{Epoch: epoch, Trainer: t.id, Bytes: to, Within: within, Reason: reason, Shrink: t.change.shrink, Stage: t.change.stage, Floor: t.floor})
}

// prove looks whether the device has confirmed the trainer's ack.
func (h *Handover) prove(t *trainer) {
	if !t.open || !t.acked {
		return
	}
	if t.proof == proofFallen && (!t.seen || t.bytes-t.floor > max(t.budget, t.part)) {
		t.proven = false // also when it rose again before its peers were done
		if t.readAt == 0 {
			t.readAt = h.now + t.readWait
		}
		return
	}
	t.proven, t.readAt = true, 0
	h.settle(t.job)
}

// settle ends a job's order when each of its trainers has proven it; before
// that nothing is released, on no device.
func (h *Handover) settle(j *job) {
	for _, t := range j.trainers {
		if t.open && !t.proven {
			return
		}
	}
	for _, t := range j.trainers {
		if !t.open {
			continue
		}
		t.open, t.fenced, t.promise = false, true, promise{}
		t.mayHold = max(t.budget, t.part)
		t.readAt = 0
		if c := t.change; c != nil && c.shrink {
			h.tail.learn(h.now - c.decided)
			h.tookTime(t, c)
		}
		h.finish(t, "confirmed")
	}
	j.resendAt = 0
}

// finish reports the trainer's last change, once. A fence that changed nothing
// is no handover.
func (h *Handover) finish(t *trainer, result string) {
	c := t.change
	t.change = nil
	if c == nil || c.from == c.to {
		return
	}
	if c.shrink && (result == "gone" || result == "unconfirmed") {
		h.failed(c)
	}
	done := HandoverDone{
		Epoch: t.epoch, Trainer: t.id, Shrink: c.shrink, Reason: c.reason, Stage: c.stage,
		From: c.from, To: c.to, Decided: c.decided, Acked: c.acked, Result: result, How: c.how,
	}
	if result == "confirmed" {
		done.Confirmed = h.now
		if c.shrink {
			done.Freed = max(0, c.bytesAt-t.bytes)
		}
		if c.within > 0 && h.now-c.decided > c.within {
			done.Result = "late"
		}
	}
	h.emit(done)
}

// runTimers repeats what was not answered in time.
func (h *Handover) runTimers() {
	for _, j := range h.jobs {
		if j.resendAt > 0 && h.now >= j.resendAt {
			h.resend(j)
		}
	}
	for _, t := range h.trainers {
		if t.readAt > 0 && h.now >= t.readAt {
			h.readAgain(t)
		}
	}
	for _, e := range h.engines {
		if !e.settled && e.epoch > 0 && e.cfg.Fence == FenceHard && !e.down && h.now >= e.retryAt {
			wait := min(2*e.retryWait, e.mostWait())
			h.setBound(e, e.bound, reasonRetry)
			e.retryWait, e.retryAt = wait, h.now+wait
		}
	}
}

func (h *Handover) resend(j *job) {
	if j.resend < firstResend && j.answered() { // hurried, and heard meanwhile
		j.resend, j.resendAt = firstResend, h.now+firstResend
		return
	}
	wait := min(2*j.resend, maxResend)
	j.resendAt = 0
	reachable := false
	for _, t := range j.trainers {
		reachable = reachable || (t.open && !t.gone)
	}
	if !reachable {
		return
	}
	for _, t := range j.trainers {
		if t.open && t.change != nil && !t.gone {
			h.issue(j, t.change.reason, 0, proofAck)
			break
		}
	}
	j.resend, j.resendAt = wait, h.now+wait
}

func (h *Handover) readAgain(t *trainer) {
	h.emit(ReadTrainer{Trainer: t.id})
	urgent := t.open && t.change != nil && h.now < t.change.decided+t.change.within
	if !urgent {
		t.readWait = min(2*t.readWait, lastRead)
	}
	t.readAt = h.now + t.readWait
}
