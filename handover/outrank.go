package handover

// howSuperseded is a trainer's word for an order that it did not obey because it
// had heard a later one.
const howSuperseded = "superseded"

// howPart is a trainer's word for an order that it met as far as it can: what its
// ack says that it holds stays as long as the job lives.
const howPart = "part"

// sessionLimit keeps epochs within what a JSON number holds exactly (2^53).
const sessionLimit = 1 << 20

// outrank moves this core's session above an epoch that somebody has already
// obeyed: the counter of starts was lost, or another writer was here. Orders of a
// lower epoch would be refused for ever. An epoch that no session can outrank is
// left alone; its owner then obeys nobody, and its bytes count.
func (h *Handover) outrank(seen Epoch) {
	if seen <= NewEpoch(h.cfg.Session, h.count) || seen.Session()+1 >= sessionLimit {
		return
	}
	h.cfg.Session, h.count = seen.Session()+1, 0
}
