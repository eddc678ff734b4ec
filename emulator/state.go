package emulator

import (
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// State is what GET /lull/state answers.
type State struct {
	PID             int        `json:"pid"`
	Baseline        size.Bytes `json:"baseline_bytes"`
	Resident        size.Bytes `json:"resident_bytes"`
	Pool            size.Bytes `json:"pool_bytes"`
	Bound           size.Bytes `json:"bound_bytes"`
	BoundEpoch      uint64     `json:"bound_epoch"`
	Held            size.Bytes `json:"held_bytes"`
	Needed          size.Bytes `json:"needed_bytes"`
	Short           size.Bytes `json:"short_bytes"`
	Running         int        `json:"running"`
	Waiting         int        `json:"waiting"`
	Preemptions     uint64     `json:"preemptions"`
	KVBytesPerToken size.Bytes `json:"kv_bytes_per_token"`
	BlockTokens     int        `json:"block_tokens"`
	MaxModelLen     int        `json:"max_model_len"`

	stats model.Stats
}

// publish renews what others may know.
func (e *engine) publish() {
	st := e.model.Stats()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.state
	s.Bound, s.BoundEpoch = size.Bytes(st.BoundPages)*e.geometry.page, e.epoch
	s.Needed = size.Bytes(st.MappedPages) * e.geometry.page
	s.Short = size.Bytes(st.ShortPages) * e.geometry.page
	s.Running, s.Waiting, s.Preemptions = st.Running, st.Waiting, st.Preemptions
	s.stats = st
}

// State is what the engine last published, with the bytes held now.
func (e *engine) State() State {
	e.mu.Lock()
	s := e.state
	e.mu.Unlock()
	s.Held = e.kv.held()
	return s
}
