package trainer

import (
	"math"
	"time"
)

func readWelcome(f fields) Message {
	m := Welcome{Version: f.int("version", true)}
	session := f.int("session", true)
	if session > math.MaxUint32 {
		f.fail("session", "got an integer out of range, want 32 bits")
	}
	m.Session = uint32(session)
	m.Heartbeat = f.duration("heartbeat_ms", time.Millisecond, true)
	m.Lease = f.duration("lease_ms", time.Millisecond, true)
	return m
}

func (m Welcome) write(w *writer) {
	w.int("version", m.Version)
	w.int("session", int64(m.Session))
	w.duration("heartbeat_ms", m.Heartbeat, time.Millisecond)
	w.duration("lease_ms", m.Lease, time.Millisecond)
}

func readBudget(f fields) Message {
	return Budget{
		Epoch: uint64(f.int("epoch", true)), Bytes: f.bytes("bytes", true),
		Within: f.duration("within_us", time.Microsecond, false),
		Reason: f.text("reason", false), Floor: f.bytes("floor", false), Traceparent: f.text("traceparent", false),
	}
}

func (m Budget) write(w *writer) {
	w.uint("epoch", m.Epoch)
	w.bytes("bytes", m.Bytes)
	w.duration("within_us", m.Within, time.Microsecond)
	w.text("reason", m.Reason)
	w.bytes("floor", m.Floor)
	w.text("traceparent", m.Traceparent)
}

func readRefused(f fields) Message {
	return Refused{Floor: f.bytes("floor", true), Reason: f.text("reason", false)}
}

func (m Refused) write(w *writer) {
	w.bytes("floor", m.Floor)
	w.text("reason", m.Reason)
}

func readPace(f fields) Message {
	m := Pace{
		Duty: f.float("duty", true), Reason: f.text("reason", false),
		Lease: f.duration("lease_ms", time.Millisecond, false),
	}
	if m.Duty < 0 || m.Duty > 1 {
		f.fail("duty", "got a number out of range, want 0 to 1")
	}
	return m
}

func (m Pace) write(w *writer) {
	w.float("duty", m.Duty)
	w.text("reason", m.Reason)
	w.duration("lease_ms", m.Lease, time.Millisecond)
}

func readYield(f fields) Message {
	return Yield{Lease: f.duration("lease_ms", time.Millisecond, true), Reason: f.text("reason", false)}
}

func (m Yield) write(w *writer) {
	w.duration("lease_ms", m.Lease, time.Millisecond)
	w.text("reason", m.Reason)
}

func readDrain(f fields) Message { return Drain{Reason: f.text("reason", false)} }

func (m Drain) write(w *writer) { w.text("reason", m.Reason) }

func readBye(f fields) Message { return Bye{Reason: f.text("reason", false)} }

func (m Bye) write(w *writer) { w.text("reason", m.Reason) }

func readPing(f fields) Message { return Ping{Seq: f.int("seq", false)} }

func (m Ping) write(w *writer) { w.int("seq", m.Seq) }

func readErrorLine(f fields) Message {
	return ErrorLine{What: f.text("what", true), Where: f.text("where", true), Rule: f.text("rule", true)}
}

func (m ErrorLine) write(w *writer) {
	w.text("what", m.What)
	w.text("where", m.Where)
	w.text("rule", m.Rule)
}
