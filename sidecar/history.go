package sidecar

import (
	"sync"
	"time"
)

// Handover is one line of /api/v1/handovers. Times are microseconds from the
// decision; 0 means that it never came.
type Handover struct {
	At         time.Time `json:"at"`
	Epoch      string    `json:"epoch"`
	Trainer    string    `json:"trainer"`
	Direction  string    `json:"direction"`
	Reason     string    `json:"reason"`
	Stage      string    `json:"stage,omitempty"` // that a shrink was for
	How        string    `json:"how"`
	Result     string    `json:"result"`
	FromBytes  int64     `json:"from_bytes"`
	ToBytes    int64     `json:"to_bytes"`
	FreedBytes int64     `json:"freed_bytes"`
	AckedUS    int64     `json:"acked_us"`
	TookUS     int64     `json:"took_us"`
}

// historyLimit is how many handovers the API remembers.
const historyLimit = 1024

// history keeps the last handovers.
type history struct {
	mu   sync.Mutex
	ring []Handover
	next int
}

func (h *history) add(d Handover) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < historyLimit {
		h.ring = append(h.ring, d)
		return
	}
	h.ring[h.next] = d
	h.next = (h.next + 1) % historyLimit
}

// newestFirst is a copy.
func (h *history) newestFirst() []Handover {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Handover, 0, len(h.ring))
	for i := range h.ring {
		out = append(out, h.ring[(h.next+len(h.ring)-1-i)%len(h.ring)])
	}
	return out
}
