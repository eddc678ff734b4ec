package sidecar

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

// The headers by which a client asks for its own limits; llm-d and
// inference-perf use the same names. TPOT is a request's mean gap.
const (
	ttftHeader = "X-Slo-Ttft-Ms"
	tpotHeader = "X-Slo-Tpot-Ms"
)

// asked is what the headers of a request say about its objectives.
type asked struct {
	tier       string
	ttft, tpot time.Duration // 0: not asked for
}

type askedKey struct{}

// askedOf is what was read of the request whose context this is.
func askedOf(ctx context.Context) asked {
	a, _ := ctx.Value(askedKey{}).(asked)
	return a
}

// headers reads tiers and overrides in front of the proxy, which knows nothing
// of objectives, and hands them to the gate in the request's context.
type headers struct {
	tierHeader string            // "" reads none
	byHeader   map[string]string // value to tier
	byKey      map[string]string // sha256:hex to tier
	ttft, tpot slo.Bounds
	metrics    *telemetry.Metrics
}

func newHeaders(c config.SLO, keys []config.AuthKey, m *telemetry.Metrics) *headers {
	h := &headers{
		tierHeader: c.TierHeader, byHeader: map[string]string{}, byKey: map[string]string{}, metrics: m,
		ttft: slo.Bounds{Min: c.Overrides.TTFTMin, Max: c.Overrides.TTFTMax},
		tpot: slo.Bounds{Min: c.Overrides.TPOTMin, Max: c.Overrides.TPOTMax},
	}
	for _, t := range c.Tiers {
		if t.Header != "" {
			h.byHeader[t.Header] = t.Name
		}
		for _, k := range t.Keys {
			h.byKey[k] = t.Name
		}
	}
	for _, k := range keys {
		if k.Tier != "" {
			h.byKey[k.Hash] = k.Tier
		}
	}
	return h
}

// read wraps the proxy. It only looks: w, the body and the headers pass as they
// are, and so do the proxy's panics, which break a transfer.
func (h *headers) read(next http.Handler) http.Handler {
	if len(h.byHeader)+len(h.byKey) == 0 && h.ttft.Max+h.tpot.Max == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := asked{
			tier: h.tier(r.Header),
			ttft: h.override(r.Header, ttftHeader, h.ttft),
			tpot: h.override(r.Header, tpotHeader, h.tpot),
		}
		if a != (asked{}) {
			r = r.WithContext(context.WithValue(r.Context(), askedKey{}, a))
		}
		next.ServeHTTP(w, r)
	})
}

// tier is that of the API key, else that of the header. The map is looked up by
// a hash, so the time of the look-up tells nothing of a key.
func (h *headers) tier(in http.Header) string {
	if len(h.byKey) > 0 {
		if key := proxy.CallersKey(in); key != "" {
			if tier, ok := h.byKey[config.HashText(sha256.Sum256([]byte(key)))]; ok {
				return tier
			}
		}
	}
	if h.tierHeader == "" {
		return ""
	}
	return h.byHeader[in.Get(h.tierHeader)]
}

// override is the limit that a header asks for, inside the bounds. A header that
// says nothing sensible costs a count, never the request.
func (h *headers) override(in http.Header, name string, b slo.Bounds) time.Duration {
	text := in.Get(name)
	if text == "" {
		return 0
	}
	label := strings.ToLower(name)
	d, err := slo.ParseMillis(text)
	if err != nil || b.Max == 0 {
		h.metrics.Override(label, "ignored")
		return 0
	}
	d, clamped := b.Clamp(d)
	if clamped {
		h.metrics.Override(label, "clamped")
		return d
	}
	h.metrics.Override(label, "used")
	return d
}
