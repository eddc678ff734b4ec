package sidecar

import (
	"fmt"
	"os"
	"testing"
)

func TestTrainersThatDoNotCountLeaveNoSeries(t *testing.T) {
	r := newRig(t, nil)
	samples := func(job string) bool { return r.metric(fmt.Sprintf(`lull_training_samples{job=%q,rank="0"} 7`, job)) }
	counted := r.hello("counted", "host0", os.Getpid(), 0, 256<<20, 0)
	counted.say(report)
	r.until("its samples are shown", func() bool { return samples("counted") })
	for i := range 5 {
		c := r.hello(fmt.Sprint("stray", i), "cuda:0", os.Getpid(), 0, 0, 0)
		c.wait(`"where":"device"`)
		c.say(report)
		c.say(`{"type":"bye"}`)
		for c.lines.Scan() { // until the sidecar has closed: it has taken the report then
			continue
		}
		if samples(fmt.Sprint("stray", i)) {
			t.Error("a trainer that does not count has a series")
		}
	}
	if !samples("counted") {
		t.Error("the series of the one that counts is gone")
	}
	counted.say(`{"type":"bye"}`)
	r.until("its samples are forgotten", func() bool { return !samples("counted") })
}
