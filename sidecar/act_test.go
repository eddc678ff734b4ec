package sidecar

import (
	"testing"
	"time"

	"github.com/lull-project/lull/handover"
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
