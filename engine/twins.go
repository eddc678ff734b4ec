package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/lull-project/lull/endpoint"
)

// twinWindow is how long after its last sign a second server on the port is
// believed to be there. Shorter and the state flickers, longer and it outlives the
// twin.
const twinWindow = 30 * time.Second

// identity is what tells one server from another at the same address.
type identity struct {
	// name is what a server cannot change while it lives; it need not be unique.
	name string
	// counter only rises while the server lives.
	counter float64
}

// twins notices two servers that answer at one address in turn, as two do that
// bind one port with SO_REUSEPORT: figures of one are nothing to decide about the
// other. A restart looks alike but once: a server that was replaced never returns,
// and its counter falls once.
type twins struct {
	mu            sync.Mutex
	last, before  identity
	fell, seenTwo time.Time
}

// see is an error while two servers answer. other says that this one is not the
// last one, so that what was learned of that does not hold.
func (t *twins) see(id identity, now time.Time) (other bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case id.name != t.last.name:
		if id.name == t.before.name && t.before.name != "" {
			t.seenTwo = now
		}
		t.before, other = t.last, true
	case id.counter < t.last.counter:
		if !t.fell.IsZero() && now.Sub(t.fell) < twinWindow {
			t.seenTwo = now
		}
		t.fell, other = now, true
	}
	t.last = id
	if t.seenTwo.IsZero() || now.Sub(t.seenTwo) >= twinWindow {
		return other, nil
	}
	return other, fmt.Errorf("two servers answer there in turn, last %q; give each a port of its own. Nothing grows until one of them has been silent for %v", id.name, twinWindow)
}

// missed forgets a server that is gone.
func (t *twins) missed(err error) {
	if endpoint.NobodyListens(err) {
		t.forget()
	}
}

func (t *twins) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.before, t.fell, t.seenTwo = identity{}, identity{}, time.Time{}, time.Time{}
}
