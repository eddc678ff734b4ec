package corebench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// The kinds of steps that are timed, in the order of the table.
const (
	kindArrived  = "arrived"
	kindFinished = "finished"
	kindOne      = "progressed, one request"
	kindAll      = "progressed, 128 requests"
	kindSeen     = "engine seen"
)

var kinds = []string{kindArrived, kindFinished, kindOne, kindAll, kindSeen}

const (
	engineID  = handover.EngineID("llm")
	deviceID  = handover.DeviceID("d0")
	trainerID = handover.TrainerID("t0")
	pool      = 60 * size.GiB
	floor     = 96 * size.MiB
	slack     = 100 * time.Millisecond
)

// core is the core under test; every order and bound is confirmed at once, so
// that a step never waits for one.
type core struct {
	h    *handover.Handover
	at   time.Duration
	took map[string][]time.Duration
}

// progressBatch is how many counts one event carries, as the sidecar sends them.
const progressBatch = 128

// newCore is a core with one engine, one trainer and the requests live.
func newCore(requests int) (*core, error) {
	cfg := handover.DefaultConfig()
	cfg.Session, cfg.Grace = 1, 0
	cfg.Devices = []handover.DeviceConfig{{ID: deviceID, Capacity: pool + 20*size.GiB, Headroom: 64 * size.MiB}}
	cfg.Engines = []handover.EngineConfig{{
		ID: engineID, Devices: []handover.DeviceID{deviceID}, Pool: pool, Resident: 256 * size.MiB,
		BytesPerToken: 64 * size.KiB, BlockTokens: 32, MaxModelLen: 4096, Preempts: true, AllocDelay: 10 * time.Millisecond,
	}}
	h, err := handover.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("bench core: %w", err)
	}
	c := &core{h: h, took: map[string][]time.Duration{}}
	c.settle(h.Step(handover.EngineSeen{Engine: engineID, Bound: pool}))
	c.settle(h.Step(handover.Hello{Trainer: trainerID, Job: "gpt", Device: deviceID, Floor: floor, FloorKnown: true}))
	c.settle(h.Step(handover.TrainerSeen{Trainer: trainerID, Bytes: floor}))
	for i := range requests {
		c.at += time.Millisecond
		c.settle(h.Step(c.arrival(requestID(i))))
	}
	return c, nil
}

func requestID(i int) handover.RequestID { return handover.RequestID(fmt.Sprintf("req-%d", i)) }

func (c *core) arrival(id handover.RequestID) handover.Arrived {
	return handover.Arrived{At: c.at, ID: id, Engine: engineID, PromptBytes: 1400, Slack: slack}
}

// settle answers what the core has asked for as an ideal engine and trainer
// would.
func (c *core) settle(actions []handover.Action) {
	for len(actions) > 0 {
		var next []handover.Action
		for _, a := range actions {
			switch a := a.(type) {
			case handover.SetBound:
				next = append(next, c.h.Step(handover.BoundSet{At: c.at, Engine: a.Engine, Epoch: a.Epoch, Bound: a.Bytes})...)
			case handover.Order:
				next = append(next, c.h.Step(handover.Acked{At: c.at, Trainer: a.Trainer, Epoch: a.Epoch, How: "cached"})...)
			case handover.ReadTrainer:
				next = append(next, c.h.Step(handover.TrainerSeen{At: c.at, Trainer: a.Trainer, Bytes: floor})...)
			}
		}
		actions = next
	}
}

// step times one step; the answers to it are not in its time.
func (c *core) step(kind string, e handover.Event) {
	began := time.Now()
	actions := c.h.Step(e)
	c.took[kind] = append(c.took[kind], time.Since(began))
	c.settle(actions)
}

// timeSteps times every kind in turn, a millisecond of the core's time apart.
func timeSteps(ctx context.Context, requests, rounds int) (map[string][]time.Duration, error) {
	c, err := newCore(requests)
	if err != nil {
		return nil, err
	}
	counts := make([]handover.Progress, requests)
	for i := range counts {
		counts[i].ID = requestID(i)
	}
	held := min(pool/3, 20*size.GiB)
	for round := range rounds {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.at += time.Millisecond
		c.step(kindArrived, c.arrival("new"))
		c.step(kindOne, handover.Progressed{At: c.at, Counts: []handover.Progress{{ID: "new", OutputTokens: 1}}})
		c.step(kindFinished, handover.Finished{At: c.at, ID: "new", PromptTokens: 300, OutputTokens: 60})
		for i := range counts {
			counts[i].OutputTokens = round / 50 // one token in 50 ms
		}
		for part := range slices.Chunk(counts, progressBatch) {
			c.step(kindAll, handover.Progressed{At: c.at, Counts: part})
		}
		c.step(kindSeen, handover.EngineSeen{At: c.at, Engine: engineID, Held: held, Needed: held, Bound: pool, Running: requests})
	}
	return c.took, nil
}
