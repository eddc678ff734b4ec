package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReservesAreShownWithBothSides(t *testing.T) {
	m := NewMetrics()
	m.ShowReserves(func() []Reserve {
		return []Reserve{{
			Engine: "main", Bytes: 1 << 24, Premium: 1, Loss: 2, Bare: 3, ToTraining: 4, ToRequests: 5, ToPrefixes: 14, Kept: 15, Displaced: 6, Spent: 7, Saved: 8,
			Misses: 9, ShadowMisses: 10, Arrivals: 100, Covered: 20, Short: 30, Lot: 11, Patience: 0.5, CourseCost: 12, RentalCost: 13, With: ReserveTrial{90, 25}, Without: ReserveTrial{10, 5},
		}}
	})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`lull_reserve_bytes{engine="main"} 1.6777216e+07`,
		`lull_reserve_cost_per_second{engine="main",side="loss_without"} 3`,
		`lull_shadow_price_per_gib_second{engine="main",party="requests"} 5`,
		`lull_shadow_price_per_gib_second{engine="main",party="training"} 4`,
		`lull_shadow_price_per_gib_second{engine="main",party="prefixes"} 14`,
		`lull_reserve_prefixes_bytes{engine="main"} 15`,
		`lull_reserve_lot_bytes{engine="main"} 11`,
		`lull_reserve_patience_seconds{engine="main"} 0.5`,
		`lull_reserve_course_cost_per_second{course="followed",engine="main"} 12`,
		`lull_reserve_course_cost_per_second{course="rental",engine="main"} 13`,
		`lull_reserve_displaced_samples_total{engine="main"} 6`,
		`lull_reserve_spent_total{engine="main"} 7`,
		`lull_reserve_saved_total{engine="main"} 8`,
		`lull_reserve_expected_misses_total{engine="main",reserve="none"} 10`,
		`lull_reserve_expected_misses_total{engine="main",reserve="priced"} 9`,
		`lull_reserve_arrivals_total{engine="main",room="free"} 50`,
		`lull_reserve_trial_arrivals_total{engine="main",reserve="off",room="short"} 5`,
		`lull_reserve_trial_arrivals_total{engine="main",reserve="priced",room="free"} 65`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("not shown: %s", want)
		}
	}
}
