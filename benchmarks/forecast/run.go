package forecast

import (
	"context"
	"io"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/kvbudget"
)

// averageOf is the moving average's window, in decisions.
const averageOf = int(10 * time.Second / decide)

// arena is one horizon's methods and their cards.
type arena struct {
	names   []string
	methods []method
	cards   []card
	learned int // decisions whose outcome the methods have seen
}

// Run replays the trace, prints the table to w and writes the JSON file that the
// config names.
func Run(ctx context.Context, w io.Writer, cfg Config) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	rows, source, err := traces.Rows(cfg.Trace, cfg.Part)
	if err != nil {
		return Result{}, err
	}
	came, err := observe(ctx, cfg, &world{cfg: cfg, rows: rows})
	if err != nil {
		return Result{}, err
	}
	seen, err := newSeen(cfg)
	if err != nil {
		return Result{}, err
	}
	p := &play{cfg: cfg, came: came, world: &world{cfg: cfg, rows: rows, seen: seen}, arenas: newArenas(seen, cfg), strips: make([]strip, len(cfg.Horizons))}
	if err := p.run(ctx); err != nil {
		return Result{}, err
	}
	r := p.result(source)
	if err := r.Table(w); err != nil {
		return Result{}, err
	}
	if err := p.savePlots(w, r); err != nil {
		return Result{}, err
	}
	return r, evidence.Save(w, "forecast", cfg.Out, r)
}

// newSeen are the forecasters, plain and informed.
func newSeen(cfg Config) (seen []*kvbudget.Forecaster, err error) {
	for range informed + 1 {
		f, err := kvbudget.NewForecaster(kvbudget.ForecastConfig{Layout: cfg.Layout, Horizons: cfg.Horizons})
		if err != nil {
			return nil, err
		}
		if cfg.TimeOfDay {
			f.Clock(0, 0)
		}
		seen = append(seen, f)
	}
	return seen, nil
}

func newArenas(seen []*kvbudget.Forecaster, cfg Config) []*arena {
	arenas := make([]*arena, len(cfg.Horizons))
	for i := range arenas {
		a := &arena{names: append([]string{lull}, baselineNames...)}
		a.names = append(a.names, bound)
		a.methods = append(a.methods, &ours{f: seen[plain], horizon: i})
		for _, name := range baselineNames {
			a.methods = append(a.methods, newBaseline(name))
		}
		a.methods = append(a.methods, &ours{f: seen[informed], horizon: i})
		a.cards = make([]card, len(a.methods))
		arenas[i] = a
	}
	return arenas
}

// ours is kvbudget's forecaster, which learns from the events that it sees.
type ours struct {
	f       *kvbudget.Forecaster
	horizon int
	now     time.Duration
	last    kvbudget.Outlook
}

func (o *ours) predict(state) (q quantiles) {
	o.last = o.f.Outlook(o.now, o.horizon)
	for i, level := range levels {
		q[i] = float64(o.last.Quantile(level))
	}
	return q
}
func (*ours) learn(float64) {}
func (o *ours) at(b float64) (below, upTo float64, ok bool) {
	below, upTo = o.last.At(kvbudget.Bytes(b))
	return below, upTo, true
}

// play is the second replay, in which forecasts are made and scored.
type play struct {
	cfg     Config
	came    *truth
	world   *world
	arenas  []*arena
	average []float64
	sum     float64
	live    int // summed over decisions
	strips  []strip
	took    struct{ decide, update time.Duration }
}

func (p *play) run(ctx context.Context) error {
	n := len(p.came.burst)
	for k := range n * perDecision {
		if k%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		at := time.Duration(k) * tick
		began := time.Now()
		p.world.step(at)
		p.took.update += time.Since(began)
		if k%perDecision == 0 {
			p.decide(at, k/perDecision)
		}
	}
	return nil
}

// decide makes every method's forecast of every horizon.
func (p *play) decide(at time.Duration, i int) {
	s := p.state()
	p.live += len(p.world.live)
	for h, a := range p.arenas {
		horizon := p.cfg.Horizons[h]
		for due := i - int(horizon/decide); a.learned < due; a.learned++ { // outcomes before this moment
			for _, m := range a.methods {
				m.learn(p.came.most[h][a.learned])
			}
		}
		by95 := make([]float64, len(a.methods))
		for k, m := range a.methods {
			began := time.Now()
			if o, ok := m.(*ours); ok {
				o.now = at
			}
			q := m.predict(s)
			if k == 0 {
				p.took.decide += time.Since(began)
			}
			by95[k] = q[p95]
			if at >= p.cfg.Warmup {
				a.cards[k].add(m, q, s.need, p.came.most[h][i], p.came.load[i], p.came.burst[i])
			}
		}
		if from := max(p.cfg.PlotFrom, p.cfg.Warmup); p.cfg.Plot != "" && at >= from && at < from+plotFor {
			p.strips[h].keep(at, p.came.most[h][i], by95)
		}
	}
}

func (p *play) state() state {
	need := float64(p.world.need)
	p.average, p.sum = append(p.average, need), p.sum+need
	if len(p.average) > averageOf {
		p.sum -= p.average[0]
		p.average = p.average[1:]
	}
	return state{need: need, average: p.sum / float64(len(p.average)), worst: float64(p.world.worst(p.came.limit))}
}
