package sidecar

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/telemetry"
)

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func tieredSLO() config.SLO {
	c := config.Default().SLO
	c.TierHeader = "X-Tier"
	c.Tiers = []config.Tier{{Name: "gold", Header: "premium", Keys: []string{hashOf("sk-gold")}}, {Name: "batch", Keys: []string{hashOf("sk-batch")}}}
	c.Overrides = config.Overrides{TTFTMin: 100 * time.Millisecond, TTFTMax: 2 * time.Second, TPOTMax: time.Second}
	return c
}

// metricsText is what a scrape shows.
func metricsText(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestHeadersSayTierAndOverrides(t *testing.T) {
	for name, c := range map[string]struct {
		headers map[string]string
		want    asked
	}{
		"nothing":              {nil, asked{}},
		"tier by header":       {map[string]string{"X-Tier": "premium"}, asked{tier: "gold"}},
		"unknown tier":         {map[string]string{"X-Tier": "gold"}, asked{}},
		"tier by key":          {map[string]string{"Authorization": "Bearer sk-batch"}, asked{tier: "batch"}},
		"scheme in any case":   {map[string]string{"Authorization": "bearer sk-gold"}, asked{tier: "gold"}},
		"tier by the x-header": {map[string]string{"X-Api-Key": "sk-batch"}, asked{tier: "batch"}},
		"key beats header":     {map[string]string{"Authorization": "Bearer sk-batch", "X-Tier": "premium"}, asked{tier: "batch"}},
		"unknown key":          {map[string]string{"Authorization": "Bearer sk-other", "X-Tier": "premium"}, asked{tier: "gold"}},
		"no bearer":            {map[string]string{"Authorization": "Basic sk-batch"}, asked{}},
		"override":             {map[string]string{"x-slo-ttft-ms": "250", "x-slo-tpot-ms": "12.5"}, asked{ttft: 250 * time.Millisecond, tpot: 12500 * time.Microsecond}},
		"below the bounds":     {map[string]string{"x-slo-ttft-ms": "1"}, asked{ttft: 100 * time.Millisecond}},
		"above the bounds":     {map[string]string{"x-slo-tpot-ms": "5000"}, asked{tpot: time.Second}},
		"no number":            {map[string]string{"x-slo-ttft-ms": "soon"}, asked{}},
	} {
		t.Run(name, func(t *testing.T) {
			var got asked
			h := newHeaders(tieredSLO(), nil, telemetry.NewMetrics()).read(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = askedOf(r.Context()) }))
			r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestOverridesAreCountedByWhatBecameOfThem(t *testing.T) {
	m := telemetry.NewMetrics()
	h := newHeaders(tieredSLO(), nil, m).read(http.NotFoundHandler())
	for _, v := range []string{"250", "300", "1", "soon"} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("x-slo-ttft-ms", v)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	text := metricsText(t, m)
	for _, want := range []string{`result="used"} 2`, `result="clamped"} 1`, `result="ignored"} 1`} {
		if !strings.Contains(text, `lull_slo_overrides_total{header="x-slo-ttft-ms",`+want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestHeadersWithoutBoundsAreIgnored(t *testing.T) {
	c := tieredSLO()
	c.Overrides = config.Overrides{TTFTMax: time.Second}
	h := newHeaders(c, nil, telemetry.NewMetrics())
	if got := h.override(http.Header{tpotHeader: {"10"}}, tpotHeader, h.tpot); got != 0 {
		t.Errorf("got %v, want nothing: tpot has no bounds", got)
	}
}

func TestNothingStandsBeforeTheProxyWithoutTiersAndOverrides(t *testing.T) {
	next := http.NewServeMux()
	if got := newHeaders(config.Default().SLO, nil, telemetry.NewMetrics()).read(next); got != http.Handler(next) {
		t.Errorf("got %T before the proxy, want the proxy itself", got)
	}
}

func TestAbortPassesThroughToTheServer(t *testing.T) {
	h := newHeaders(tieredSLO(), nil, telemetry.NewMetrics()).read(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("got %v, want the proxy's own abort, which breaks the transfer", got)
		}
	}()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
}
