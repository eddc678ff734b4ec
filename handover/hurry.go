package handover

// hurryAfter is, in deadlines, when an overdue order is first repeated.
const hurryAfter = 4

// hurry has an order repeated that is overdue while a request waits for what it
// brings, soon and then ever more slowly, instead of after firstResend: the order or
// its answer may be lost, and a trainer that has obeyed already answers a repeat at
// once.
func (h *Handover) hurry(e *engine) {
	for _, d := range e.devices {
		for _, t := range d.trainers {
			c, j := t.change, t.job
			if !t.open || c == nil || !c.shrink || j.resend != firstResend {
				continue
			}
			j.resend = hurryAfter * h.cfg.AckWithin
			j.resendAt = min(j.resendAt, max(h.now, c.decided+j.resend))
		}
	}
}

// answered says that every trainer of the job which owes something has promised it,
// and only the device has yet to show it.
func (j *job) answered() bool {
	for _, t := range j.trainers {
		if t.open && !t.acked {
			return false
		}
	}
	return true
}
