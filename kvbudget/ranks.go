package kvbudget

import "time"

const (
	// rankEvery and rankMemory make a need's rank that among the last half hour's
	// or so.
	rankEvery  = time.Second
	rankMemory = 2000.0
	// A burst is a rate over the last seconds above burstFactor times that of the
	// last minute, and at least burstArrivals of them.
	burstFactor, burstArrivals = 2.0, 3.0
)

// ranks tells light from heavy load by the needs seen so far.
type ranks struct {
	seen recent
	next time.Duration
}

func newRanks() ranks { return ranks{seen: newRecent(lengthBucket, rankMemory)} }

// regime is the load tercile of a need, 0 to 2.
func (r *ranks) regime(at time.Duration, need, unit Bytes) int {
	bin := bucketOf(int(need / unit))
	if at >= r.next {
		r.seen.add(bin)
		r.next = at + rankEvery
	}
	return min(int(r.seen.below(bin)*loads), loads-1)
}

// burst tells whether arrivals come much faster now than over the last minute.
func (r *Rates) burst(at time.Duration) bool {
	const now, minute = 1, 3 // of rateScales
	r.discount(at)
	fast, slow := r.n[now]/rateScales[now].Seconds(), r.n[minute]/rateScales[minute].Seconds()
	return r.n[now] >= burstArrivals && fast > burstFactor*slow
}
