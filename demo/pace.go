package demo

import "time"

// nextSend says how long to wait, elapsed after the start of the load, before
// the request after the sent ones goes out; done is true when none is left. It
// looks at the schedule only, never at answers: a slow server cannot slow the
// load, and a late sender catches up at once.
func nextSend(schedule []time.Duration, sent int, elapsed time.Duration) (wait time.Duration, done bool) {
	if sent >= len(schedule) {
		return 0, true
	}
	return max(0, schedule[sent]-elapsed), false
}
