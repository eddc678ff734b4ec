package telemetry

import (
	"strings"
	"testing"
)

func TestObjectivesStandInTheMetricsAsTheyAreAtTheScrape(t *testing.T) {
	m := NewMetrics()
	burn, attained := 2.0, 0.98
	m.ShowObjectives(func() ([]Objective, []Goodput) {
		return []Objective{
			{SLO: "default", Kind: "ttft", Target: 0.99, Quantiles: map[float64]float64{0.5: 0.25},
				Windows: []ObjectiveWindow{{Window: "5m", Attainment: attained, BudgetLeft: -1, BurnRate: &burn, Within: 98, Beyond: 1, Missing: 1}}},
			{SLO: "gold", Kind: "tbt", Target: 1, Windows: []ObjectiveWindow{{Window: "1h", Attainment: 0.5, Within: 1, Beyond: 1}}},
		}, []Goodput{{SLO: "default", Window: "1m", PerSecond: 1.5}}
	})
	text := scrape(t, m)
	for _, want := range []string{
		`lull_slo_target_ratio{objective="ttft",slo="default"} 0.99`, `lull_slo_attainment_ratio{objective="ttft",slo="default",window="5m"} 0.98`,
		`lull_slo_budget_left_ratio{objective="ttft",slo="default",window="5m"} -1`, `lull_slo_burn_rate{objective="ttft",slo="default",window="5m"} 2`,
		`lull_slo_window_samples{objective="ttft",result="within",slo="default",window="5m"} 98`,
		`lull_slo_window_samples{objective="ttft",result="no_data",slo="default",window="5m"} 1`,
		`lull_slo_latency_seconds{objective="ttft",quantile="0.5",slo="default"} 0.25`,
		`lull_slo_attainment_ratio{objective="tbt",slo="gold",window="1h"} 0.5`, `lull_goodput_requests_per_second{slo="default",window="1m"} 1.5`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %q", want)
		}
	}
	if strings.Contains(text, `lull_slo_burn_rate{objective="tbt"`) {
		t.Error("a hard limit that was missed has a burn rate")
	}
	attained = 0.75
	if text := scrape(t, m); !strings.Contains(text, `window="5m"} 0.75`) {
		t.Error("the next scrape shows the attainment of the first")
	}
}
