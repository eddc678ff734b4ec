package handover

import (
	"fmt"
	"sort"
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// Handover is the core: the state behind Step. Make one with New.
type Handover struct {
	cfg     Config
	now     At
	started bool
	graceAt At // from here on unclaimed bytes count as free

	devices  []*device
	engines  []*engine
	trainers []*trainer // by ID
	jobs     []*job     // by name
	requests map[RequestID]*request
	queue    []*request // held, least slack first
	arrival  *request   // arrived in this Step and not yet answered
	tail     tail
	times    *kvbudget.Times // of shrinks, failures included; tail has no failures
	prices   Priced
	prefill  time.Duration // a token of a prompt, as last seen
	off      bool          // no priced reserves for now
	share    share         // of the devices' time, that training has

	count uint32 // epochs given
	seq   uint64 // requests seen
	wake  At     // last Wake that has not come, 0 none
	idle  At     // next look at a bound that may be lent, 0 none

	orders, bounds, rest []Action // of this Step
}

// New checks the config and starts from nothing: every engine is charged its
// whole pool until it is seen.
func New(cfg Config) (*Handover, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("handover config: %w", err)
	}
	h := &Handover{cfg: cfg, requests: map[RequestID]*request{}, tail: newTail(cfg.AckWithin), times: kvbudget.NewTimes(cfg.AckWithin)}
	for _, d := range cfg.Devices {
		h.devices = append(h.devices, &device{cfg: d, capacity: d.Capacity})
	}
	for _, c := range cfg.Engines {
		e, err := newEngine(c, cfg.AckWithin, cfg.Horizon)
		if err != nil {
			return nil, fmt.Errorf("handover config: %w", err)
		}
		for _, id := range c.Devices {
			d := h.device(id)
			e.devices, e.scales = append(e.devices, d), append(e.scales, c.scaleOf(id))
			d.engines = append(d.engines, e)
		}
		h.engines = append(h.engines, e)
	}
	return h, nil
}

// withDefaults replaces the zero values that make no sense.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	or(&c.Mode, d.Mode)
	or(&c.Quantum, d.Quantum)
	or(&c.AckWithin, d.AckWithin)
	or(&c.Hold, d.Hold)
	or(&c.Owed, d.Owed)
	or(&c.QueueLimit, d.QueueLimit)
	or(&c.Quantile, d.Quantile)
	or(&c.Horizon, d.Horizon)
	return c
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Step takes one event and returns what to do, in order: orders, then bounds,
// then the rest.
func (h *Handover) Step(e Event) []Action {
	h.orders, h.bounds, h.rest = nil, nil, nil
	h.now = max(h.now, e.when())
	if !h.started {
		h.started, h.graceAt = true, h.now+h.cfg.Grace
	}
	h.dispatch(e)
	h.noteOver()
	h.decide()
	h.serveQueue()
	h.answerArrival()
	h.checkLedger()
	h.noteOwed()
	h.sleep()
	acts := append(h.orders, h.bounds...)
	return append(acts, h.rest...)
}

func (h *Handover) dispatch(e Event) {
	switch e := e.(type) {
	case Tick: // time has passed; the deciding below looks at it
	case ClockSeen:
		for _, eng := range h.engines {
			eng.pred.Clock(h.now, e.OfDay)
		}
	case Arrived:
		h.onArrived(e)
	case Progressed:
		h.onProgressed(e)
	case Finished:
		h.onFinished(e)
	case EngineSeen:
		h.onEngineSeen(e)
	case AllocDelaySeen:
		h.onAllocDelaySeen(e)
	case EngineDown:
		h.onEngineDown(e)
	case EngineUnread:
		h.onEngineUnread(e)
	case EngineUp:
		h.onEngineUp(e)
	case BoundSet:
		h.onBoundSet(e)
	case BoundFailed:
		h.onBoundFailed(e)
	case Hello:
		h.onHello(e)
	case Acked:
		h.onAcked(e)
	case FloorAsked:
		h.onFloorAsked(e)
	case TrainerGone:
		h.onTrainerGone(e)
	case TrainerSeen:
		h.onTrainerSeen(e)
	case CapacitySeen:
		h.onCapacitySeen(e)
	case Priced:
		h.onPriced(e)
	case ReserveOff:
		h.onReserveOff(e)
	case PrefillSeen:
		h.prefill = max(0, e.PerToken)
	case TrainingShare:
		h.onTrainingShare(e)
	case TrainerRated:
		h.onTrainerRated(e)
	default:
		panic(fmt.Sprintf("handover: event %T has no handler", e))
	}
}

// decide is the policy, after the event's facts are in the ledger.
func (h *Handover) decide() {
	for _, e := range h.engines {
		h.forecast(e)
	}
	h.runTimers()
	if h.cfg.Mode == ModeStatic {
		h.answerFloors()
		h.splitOnce()
		return
	}
	h.shrinkForNeed()
	h.answerFloors()
	h.raiseBounds()
	h.lend()
}

func (h *Handover) nextEpoch() Epoch {
	h.count++
	return NewEpoch(h.cfg.Session, h.count)
}

func (h *Handover) order(a Order)        { h.orders = append(h.orders, a) }
func (h *Handover) emit(a Action)        { h.rest = append(h.rest, a) }
func (h *Handover) emitBound(a SetBound) { h.bounds = append(h.bounds, a) }

func (h *Handover) device(id DeviceID) *device {
	for _, d := range h.devices {
		if d.cfg.ID == id {
			return d
		}
	}
	return nil
}

func (h *Handover) engine(id EngineID) *engine {
	for _, e := range h.engines {
		if e.cfg.ID == id {
			return e
		}
	}
	return nil
}

func (h *Handover) trainer(id TrainerID) *trainer {
	i := sort.Search(len(h.trainers), func(i int) bool { return h.trainers[i].id >= id })
	if i < len(h.trainers) && h.trainers[i].id == id {
		return h.trainers[i]
	}
	return nil
}

func newEngine(c EngineConfig, within, horizon time.Duration) (*engine, error) {
	l := kvbudget.Layout{PerToken: max(c.BytesPerToken, 1), BlockTokens: c.BlockTokens}
	c.Pool = c.tightestPool()
	c.MinBound = min(max(c.MinBound, l.Block()), c.Pool)
	if c.Whole {
		c.MinBound = 0
	}
	if c.Idle == 0 {
		c.Idle = wholeIdle
	}
	e := &engine{cfg: c, resident: c.Resident, bound: c.Pool, mayMap: c.Pool, delay: allocDelay{given: c.AllocDelay}}
	f, err := kvbudget.NewForecaster(kvbudget.ForecastConfig{
		Layout: l, MaxModelLen: max(c.MaxModelLen, 0), Pool: c.Pool, Lead: true, Horizons: []time.Duration{lookInsured: looked(within), lookSettled: looked(horizon)},
	})
	if err != nil {
		return nil, fmt.Errorf("engines.%s: %w", c.ID, err)
	}
	e.pred = f
	if c.Fence == FenceStatic {
		e.held = c.Pool
	}
	return e, nil
}
