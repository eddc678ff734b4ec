package sidecar

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
)

func TestRunningSidecarCountsByTierAndClientsOwnLimit(t *testing.T) {
	r := newRig(t, func(f *config.File) {
		f.SLO = chatSLO()
		f.SLO.TTFT, f.SLO.Objectives[0].TTFT = time.Minute, time.Minute
		f.SLO.Objectives[0].TTFTPerToken = 0
	})
	for _, header := range []http.Header{{}, {"X-Tier": {"premium"}}, {"Authorization": {"Bearer sk-gold"}}, {"X-Slo-Ttft-Ms": {"100"}}} {
		req, err := http.NewRequest(http.MethodPost, r.base+"/v1/chat/completions", strings.NewReader(`{"stream":true,"emulate":{"output_tokens":3},"max_tokens":8,"messages":[{"role":"user","content":"one two"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%v: status %d, want 200", header, resp.StatusCode)
		}
	}
	counts := func() map[string]uint64 {
		n := map[string]uint64{}
		for _, s := range r.state().SLO {
			for _, o := range s.Objectives {
				if o.Objective == "ttft" {
					n[s.Name] = o.Total.N()
				}
			}
		}
		return n
	}
	r.until("every request is counted under its tier", func() bool { n := counts(); return n["gold"] == 2 && n["default"] == 2 })
	resp, err := r.client.Get(r.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	for _, want := range []string{`lull_slo_attainment_ratio{objective="ttft",slo="gold",window="1m"} 1`, `lull_slo_burn_rate{objective="ttft",slo="gold",window="30d"} 0`, `lull_slo_overrides_total{header="x-slo-ttft-ms",result="used"} 1`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%v: metrics lack %s", err, want)
		}
	}
}
