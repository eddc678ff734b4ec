package sidecar

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/trainer"
)

func TestLaterWakeTakesThePlaceOfAnEarlierOne(t *testing.T) {
	l := &loop{}
	for _, at := range []handover.At{12 * time.Millisecond, 17 * time.Millisecond, 5 * time.Millisecond} {
		l.perform(handover.Wake{At: at})
		if l.wakeAt != at {
			t.Errorf("wake at %v: the timer is at %v", at, l.wakeAt)
		}
	}
}

// deaf is a trainer that does not read its socket.
type deaf struct{}

func (deaf) Send(trainer.Message) error { return trainer.ErrLate }
func (deaf) Close()                     {}

func TestTrainerThatDoesNotReadGetsOneLogLineASecond(t *testing.T) {
	now := time.Unix(100, 0)
	logs := &syncBuffer{}
	l := &loop{clock: func() time.Time { return now }, start: now, log: slog.New(slog.NewTextHandler(logs, nil)), view: newView(nil, 1),
		trainers: map[handover.TrainerID]*trainerPeer{"t": {id: "t", session: deaf{}}, "u": {id: "u", session: deaf{}}}}
	for range 2 {
		for range 500 {
			l.perform(handover.Order{Trainer: "t", Epoch: handover.NewEpoch(1, 1)})
		}
		now = now.Add(time.Second)
	}
	l.perform(handover.Order{Trainer: "u", Epoch: handover.NewEpoch(1, 2)})
	lines := strings.Split(strings.TrimSpace(logs.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "dropped_before=0") || !strings.HasSuffix(lines[1], "dropped_before=499") || !strings.Contains(lines[2], "trainer=u") {
		t.Errorf("%d lines, want one a second for t with the count of those left out, and one for u: %q", len(lines), lines[:min(len(lines), 4)])
	}
}
