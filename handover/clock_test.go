package handover

import (
	"fmt"
	"testing"
	"time"
)

// TestEnginesForecastsHearTheTimeOfDay: on days with one busy hour the core expects it
// when it begins, and one that was never told the time does not.
func TestEnginesForecastsHearTheTimeOfDay(t *testing.T) {
	expected := func(told bool) float64 {
		c := demoConfig()
		c.Grace = 0
		h, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		e := h.engines[0]
		if told {
			h.Step(ClockSeen{At: 0, OfDay: 0})
		}
		busy := func(at At) bool { return at%(24*time.Hour)/time.Hour == 9 }
		end := 3*24*time.Hour + 9*time.Hour + time.Second
		for at, n := time.Second, 0; at < end; n++ {
			id := RequestID(fmt.Sprint(n))
			h.Step(Arrived{At: at, ID: id, Engine: e.cfg.ID, PromptTokens: 20})
			h.Step(Finished{At: at + ms, ID: id, PromptTokens: 20, OutputTokens: 2})
			if busy(at) {
				at += 4 * time.Second
			} else {
				at += time.Minute
			}
		}
		h.Step(Tick{At: end})
		return e.pred.PerSecond()
	}
	if with, without := expected(true), expected(false); with < 3*without {
		t.Errorf("%.3f/s expected as the busy hour begins with the time of day and %.3f/s without, want much more", with, without)
	}
}
