package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lull-project/lull/benchmarks/peers"
)

// armAgain is a second arm of direct calls: what differs between the two is the
// noise of the client, the upstream and the machine.
const armAgain = "direct again"

// contender is an arm of the run beside peers.
type contender struct {
	target
	gateway bool
}

// field is everything that takes part, and what could not.
type field struct {
	arms    []contender
	reports []peerReport
	stop    func() error
}

// peerReport is what the result says of a peer: its version, or why it is not
// there.
type peerReport struct {
	Name     string   `json:"name"`
	Gateway  bool     `json:"llm_gateway"`
	Registry string   `json:"registry"`
	Pinned   string   `json:"pinned"`
	Reports  string   `json:"reports,omitempty"`
	Settings []string `json:"settings"`
	Missing  string   `json:"missing,omitempty"`
}

// startField starts the upstream, the two proxies of this program and every peer
// that can be had. A peer that cannot is in the reports with the reason.
func startField(ctx context.Context, say io.Writer, cfg PeersConfig, chosen []peers.Peer) (*field, error) {
	var ends []func() error
	f := &field{stop: func() error {
		var errs []error
		for i := len(ends) - 1; i >= 0; i-- {
			errs = append(errs, ends[i]())
		}
		return errors.Join(errs...)
	}}
	as := func(arm, addr string) target {
		return target{arm: arm, addr: addr, prompt: cfg.Prompt, events: cfg.Events}
	}
	var upstream string
	for _, arm := range armNames {
		r := role{Name: arm, Events: cfg.Events, Gap: cfg.Gap}
		if arm != armDirect {
			r = role{Name: arm, Upstream: "http://" + upstream}
		}
		c, err := start(ctx, r)
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		ends = append(ends, func() error { c.stop(); return nil })
		f.arms = append(f.arms, contender{target: as(arm, c.addr)})
		if arm == armDirect {
			upstream = c.addr
			f.arms = append(f.arms, contender{target: as(armAgain, c.addr)})
		}
	}
	cache, err := peers.Cache()
	if err != nil {
		return nil, errors.Join(err, f.stop())
	}
	for _, p := range chosen {
		to := as(p.Name, "")
		if p.Headers != nil {
			to.headers = p.Headers(upstream)
		}
		report := peerReport{Name: p.Name, Gateway: p.Gateway, Registry: p.Registry, Pinned: p.Version, Settings: p.Settings}
		run, err := startPeer(ctx, say, cache, p, upstream, to)
		switch {
		case ctx.Err() != nil:
			return nil, errors.Join(ctx.Err(), f.stop())
		case err != nil:
			report.Missing = err.Error()
			fmt.Fprintf(say, "bench peers: %v\n", err)
		default:
			ends = append(ends, run.Stop)
			report.Reports, to.addr = run.Reports, run.Addr
			f.arms = append(f.arms, contender{target: to, gateway: p.Gateway})
		}
		f.reports = append(f.reports, report)
	}
	return f, nil
}

// startPeer installs and starts one, and waits until a whole answer comes
// through it.
func startPeer(ctx context.Context, say io.Writer, cache string, p peers.Peer, upstream string, to target) (*peers.Process, error) {
	in, err := p.Install(ctx, cache, say)
	if err != nil {
		return nil, err
	}
	return in.Start(ctx, upstream, func(ctx context.Context, addr string) error {
		to.addr = addr
		c, err := dial(ctx, to)
		if err != nil {
			return err
		}
		defer c.close()
		_, err = c.call(time.Now(), nil)
		return err
	})
}
