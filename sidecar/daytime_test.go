package sidecar

import (
	"testing"
	"time"

	"github.com/lull-project/lull/handover"
)

// TestCoreHearsTheTimeOfDayOnceAndWhenTheClockIsSet: midnight is no news.
func TestCoreHearsTheTimeOfDayOnceAndWhenTheClockIsSet(t *testing.T) {
	zone := time.FixedZone("east", 2*60*60)
	start := time.Date(2026, 11, 30, 21, 30, 0, 0, time.UTC).In(zone) // 23:30 there
	var d daytime
	for _, c := range []struct {
		at    handover.At
		set   time.Duration // of the clock on the wall
		want  time.Duration
		heard bool
	}{
		{time.Second, 0, 23*time.Hour + 30*time.Minute + time.Second, true},
		{2 * time.Second, time.Hour, 0, false}, // not looked at yet
		{10 * time.Minute, 300 * time.Millisecond, 0, false},
		{time.Hour, 0, 0, false},
		{2 * time.Hour, time.Hour, 2*time.Hour + 30*time.Minute, true},
		{3 * time.Hour, time.Hour, 0, false},
		{4 * time.Hour, 0, 3*time.Hour + 30*time.Minute, true},
	} {
		if got, heard := d.news(c.at, start.Add(c.at+c.set)); got != c.want || heard != c.heard {
			t.Errorf("at %v with the clock set by %v: %v, heard %t, want %v, %t", c.at, c.set, got, heard, c.want, c.heard)
		}
	}
}
