package sidecar

import (
	"time"

	"github.com/lull-project/lull/handover"
)

// dayEvery is how often the clock on the wall is looked at, and dayStray how far it
// may stray before the core hears of it.
const dayEvery, dayStray = time.Minute, time.Second

// daytime tells the core how late in the day it is: at first, and when the clock on
// the wall was set or changed to or from summer time. Its methods run on the loop's
// goroutine.
type daytime struct {
	told     bool
	lookAt   handover.At
	midnight time.Duration // ofDay - at, as last told
}

// news is how late it is, and whether the core has yet to hear it.
func (d *daytime) news(at handover.At, wall time.Time) (ofDay time.Duration, due bool) {
	if d.told && at < d.lookAt {
		return 0, false
	}
	d.lookAt = at + dayEvery
	hour, minute, second := wall.Clock()
	ofDay = time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second + time.Duration(wall.Nanosecond())
	const whole = 24 * time.Hour
	stray := (ofDay - at - d.midnight) % whole
	if stray < 0 {
		stray += whole
	}
	if d.told && min(stray, whole-stray) < dayStray {
		return 0, false
	}
	d.told, d.midnight = true, ofDay-at
	return ofDay, true
}
