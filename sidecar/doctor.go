package sidecar

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/lull-project/lull/trainer"
)

// reception stands before the sessions and keeps doctors (trainer.DoctorJob) out of
// them: nothing of one is logged, counted or lent to.
type reception struct{ *sessions }

var _ trainer.Handler = reception{}

// Hello answers a doctor with an error line, whatever is found: it takes nothing
// else as an answer to hello.
func (r reception) Hello(ses *trainer.Session, h trainer.Hello) {
	if !isDoctor(ses) {
		r.sessions.Hello(ses, h)
		return
	}
	_ = ses.Send(r.diagnosis(ses.PID(), h.Device)) // it leaves by itself
}

// diagnosis is what a trainer of that process on that device would hear.
func (r reception) diagnosis(pid int, said string) trainer.ErrorLine {
	place, ok := r.place(said)
	if !ok {
		return r.unknown(said)
	}
	process, _, err := r.open(pid)
	if err != nil {
		return unseen
	}
	_ = process.Close()
	return trainer.ErrorLine{What: "hello", Where: "doctor", Rule: fmt.Sprintf("the device is %s of lull.yaml", place)}
}

// Gone is of no interest where a doctor leaves.
func (r reception) Gone(ses *trainer.Session, why trainer.Reason) {
	if !isDoctor(ses) {
		r.sessions.Gone(ses, spoken(why))
	}
}

// spoken says of a process that the kernel saw end that it ended: how, only its
// parent knows, and a script that leaves without a bye may have done well.
func spoken(why trainer.Reason) trainer.Reason {
	if why == trainer.GoneDied {
		return "process ended"
	}
	return why
}

// Ack, FloorRequest and Report of a doctor are nobody's.
func (r reception) Ack(ses *trainer.Session, a trainer.Ack) {
	if !isDoctor(ses) {
		r.sessions.Ack(ses, a)
	}
}

// FloorRequest makes reception a trainer.Handler.
func (r reception) FloorRequest(ses *trainer.Session, q trainer.Request) {
	if !isDoctor(ses) {
		r.sessions.FloorRequest(ses, q)
	}
}

// Report likewise.
func (r reception) Report(ses *trainer.Session, p trainer.Report) {
	if !isDoctor(ses) {
		r.sessions.Report(ses, p)
	}
}

func isDoctor(ses *trainer.Session) bool { return ses.Key().Job == trainer.DoctorJob }

// faultLevel is that of a fault of the control channel in the log. A doctor's first
// question is a line before hello, and one that left without hello asked for
// nothing: both are everyday.
func faultLevel(err error) slog.Level {
	var bad *trainer.LineError
	if errors.As(err, &bad) && (*bad == trainer.LineError{What: "pong", Where: "type", Rule: trainer.HelloFirst} || *bad == trainer.LineError{What: "hello", Where: "line", Rule: "none came: EOF"}) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
