package proxybench

import (
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// load is one kind of traffic that all arms get in turn: so many connections,
// each sending its next request when the last is answered.
type load struct {
	name string
	arms []string
	// connections are open at once; events with gap between them are in an answer,
	// prompt bytes in a request.
	connections, events int
	gap                 time.Duration
	prompt              int
	// slice is how long an arm takes the load before the next one does.
	slice time.Duration
	// halve tries half of the connections, for all arms alike, where a tenth of the
	// later events of any arm come a gap late and more: they queue.
	halve bool
}

// The names of the loads.
const (
	loadStreams = "streams"
	loadLong    = "220 KB prompts"
	loadLongest = "1 MB prompts"
	loadSingle  = "single events"
)

// loads are the rows that a run adds: many slow streams, long and very long
// prompts, and answers of one event, which Lull's own account of its time is
// compared over.
func loads(cfg Config) []load {
	return []load{
		{name: loadStreams, arms: []string{armDirect, armAgain, armBare, armLull, armBlind}, connections: cfg.Streams, events: 50, gap: cfg.LoadGap, prompt: 200, slice: cfg.Slice, halve: true},
		{name: loadLong, arms: []string{armDirect, armAgain, armBare, armLull}, connections: cfg.LongPrompts, events: 26, gap: cfg.LoadGap, prompt: 220_000, slice: cfg.Slice, halve: true},
		{name: loadLongest, arms: []string{armDirect, armAgain, armBare, armLull}, connections: cfg.LongPrompts / 4, events: 26, gap: cfg.LoadGap, prompt: 1_000_000, slice: cfg.Slice, halve: true},
		{name: loadSingle, arms: []string{armDirect, armAgain, armBare, armLull}, connections: 1, events: 1, gap: time.Millisecond, prompt: 1000, slice: cfg.Slice},
	}
}

// target is the load's request to an arm.
func (l load) target(arm, addr string) target {
	q := url.Values{"events": {strconv.Itoa(l.events)}, "gap": {l.gap.String()}}
	if arm == armBlind {
		q.Set("encoding", blindEncoding)
	}
	return target{arm: arm, addr: addr, query: "?" + q.Encode(), prompt: l.prompt, events: l.events}
}

// asked is what a request's query asks of the upstream.
func (u upstream) asked(q url.Values) (upstream, string, error) {
	if s := q.Get("events"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return u, "", fmt.Errorf("events: got %q, want a number of at least 1", s)
		}
		u.events = n
	}
	if s := q.Get("gap"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return u, "", fmt.Errorf("gap: got %q, want a duration of 0 or more", s)
		}
		u.gap = d
	}
	return u, q.Get("encoding"), nil
}
