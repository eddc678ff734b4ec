package sidecar

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/handover"
)

// lateAfter is how far past its deadline an order is said to be stuck.
const lateAfter = time.Second

// noteLate says, in the state and once in the log, that an order stays
// unconfirmed: acked or not, the device does not show the bytes gone. Requests
// went on without them.
func (l *loop) noteLate(t *trainerPeer, ledger *handover.State) {
	t.late = ""
	if ledger == nil {
		return
	}
	for _, o := range ledger.Owed {
		if o.Trainer != t.id || !o.Shrink || ledger.At-o.Decided < o.Within+lateAfter {
			continue
		}
		word := "no ack"
		if o.Acked {
			word = "acked, but the device does not show its bytes gone"
		}
		whose := ""
		if o.Stage != "" {
			whose = " for pipeline stage " + o.Stage
		}
		t.late = fmt.Sprintf("order %s to %s%s: %s after %s; the bound stays where it is", o.Epoch, o.To, whose, word, (ledger.At - o.Decided).Round(time.Second))
		if t.lateEpoch != o.Epoch {
			t.lateEpoch = o.Epoch
			about := []any{"trainer", t.id, "epoch", o.Epoch.String(), "to", o.To, "acked", o.Acked}
			if o.Stage != "" {
				about = append(about, "stage", o.Stage)
			}
			l.log.Warn("order stays unconfirmed", about...)
		}
	}
}

// lendable says that some engine's memory moves.
func (l *loop) lendable() bool {
	for _, e := range l.engines {
		if e.engine.Capabilities().Bound {
			return true
		}
	}
	return false
}
