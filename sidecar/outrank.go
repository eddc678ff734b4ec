package sidecar

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/trainer"
)

// mostAhead is how many starts a trainer's last epoch may be above this one's. A
// counter that was lost is that far behind after half a year of a start an hour;
// without a limit one hello would use up all the sessions that there are.
const mostAhead = 1 << 12

// refuseEpoch takes back a last epoch that is absurdly far above this sidecar's
// session. Its trainer then obeys nobody until it starts again, and its bytes
// count.
func (s *sessions) refuseEpoch(ses *trainer.Session, h *trainer.Hello) {
	own := s.loop.view.started
	said := handover.Epoch(h.LastEpoch).Session()
	if said <= own || said-own <= mostAhead {
		return
	}
	h.LastEpoch = 0
	s.note(slog.LevelWarn, "trainer says that it obeyed a session that cannot be; it is not believed, and obeys nobody until it starts again",
		"trainer", s.id(ses), "pid", ses.PID(), "said", said, "own", own, "above", said-own, "most", mostAhead)
	_ = ses.Send(trainer.ErrorLine{
		What: "hello", Where: "last_epoch",
		Rule: fmt.Sprintf("got session %d, want at most %d above this sidecar's %d; it is not believed, start the job again", said, mostAhead, own),
	})
}

// keepSession writes a session that the core has taken into the locks of all
// devices, so that the next start is above it as well: an engine that obeys it
// would refuse all lower ones. It writes from a goroutine of its own, which wg
// waits for: a slow disk must not hold up the loop.
func keepSession(locks []*device.Lock, log *slog.Logger, wg *sync.WaitGroup) func(session uint32) {
	var mu sync.Mutex // a Lock is for one goroutine
	return func(session uint32) {
		log.Warn("another sidecar's epochs were above this one's; the session goes above them", "session", session)
		wg.Go(func() { // ends when it is written
			mu.Lock()
			defer mu.Unlock()
			for _, l := range locks {
				if err := l.RaiseTo(session); err != nil {
					log.Error("session not kept; after the next start the engine may refuse its bounds", "session", session, "err", err)
				}
			}
		})
	}
}
