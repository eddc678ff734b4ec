package telemetry

import "sync"

// otherLabel stands for every value beyond a label's limit.
const otherLabel = "other"

// bounded keeps the number of a label's values finite: a client chooses the
// model name in its request, and each value is a series for ever.
type bounded struct {
	mu    sync.RWMutex
	seen  map[string]bool
	limit int
}

func newBounded(limit int) *bounded { return &bounded{seen: map[string]bool{}, limit: limit} }

// label returns the value as valid UTF-8, or "other" once limit values were seen
// or when the value is too long to be a name.
func (b *bounded) label(value string) string {
	if len(value) > 128 {
		return otherLabel
	}
	value = text(value, maxLabel)
	b.mu.RLock()
	known := b.seen[value]
	b.mu.RUnlock()
	if known {
		return value
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.seen) >= b.limit && !b.seen[value] {
		return otherLabel
	}
	b.seen[value] = true
	return value
}
