package sidecar

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// ledgers says in whose name a request stands in the ledger: an engine's, or that of
// the one of its models that is asked for, where Lull loads and unloads that.
type ledgers map[modelKey]ledgerEntry

type modelKey struct{ engine, model string }

// ledgerEntry is an engine of the core, and how long a request may wait for its pool.
type ledgerEntry struct {
	id    handover.EngineID
	await time.Duration
}

func newLedgers(f config.File) ledgers {
	out := ledgers{}
	for _, e := range f.Engines {
		for _, m := range e.Models {
			out[modelKey{e.Name, m.Name}] = ledgerEntry{handover.EngineID(e.ModelID(m.Name)), e.Awaits()}
		}
	}
	return out
}

// of is for a request of a model to an engine by its name in the file.
func (l ledgers) of(engine, model string) ledgerEntry {
	if e, ok := l[modelKey{engine, model}]; ok {
		return e
	}
	return ledgerEntry{id: handover.EngineID(engine)}
}

// ofModel is what an engine's entry says of one of its models: the bytes of the
// server and of its start are not its own.
func ofModel(c config.Engine, ec engine.Config) config.Engine {
	c.Name, c.Pool, c.Resident, c.Start = ec.Name, ec.Model.Bytes, 0, 0
	return c
}

// weigh is what the server of a model has by the books of the device that has most of
// it, 0 where nobody can say.
func (e *engineDriver) weigh(ctx context.Context) size.Bytes {
	if e.scale == nil || e.scale.known() == 0 {
		return 0
	}
	shown, err := e.scale.books.trees(ctx, e.scale.known())
	if err != nil {
		return 0
	}
	return slices.Max(shown)
}

// heavierBy is by how much of its bytes a model may be heavier than the file says:
// libraries and arenas that the server keeps come with a first load.
const heavierBy = 0.05

// heavier says that a load took more than the file says. A load of another model of
// the server at the same time is in the figure too: it names what is to be looked at.
func (e *engineDriver) heavier(s engine.Sample, before, after size.Bytes) string {
	took := after - before
	if before == 0 || s.Held == 0 || took <= s.Held+size.Bytes(heavierBy*float64(s.Held)) {
		return ""
	}
	return fmt.Sprintf("its server grew by %v when it was loaded, and its bytes in lull.yaml are %v: what is above them is not kept free for its next load", took, s.Held)
}
