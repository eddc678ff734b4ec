package sidecar

import (
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/telemetry"
)

// reserves are the priced reserves, for /metrics.
func (v *view) reserves() []telemetry.Reserve {
	var out []telemetry.Reserve
	for _, e := range v.ledgerEngines() {
		if p := e.Reserve.Priced; p != nil {
			out = append(out, exportReserve(string(e.ID), e.Reserve.Bytes, p))
		}
	}
	return out
}

func exportReserve(engine string, b handover.Bytes, p *handover.PricedState) telemetry.Reserve {
	trial := func(i handover.Interval) telemetry.ReserveTrial {
		return telemetry.ReserveTrial{Arrivals: i.Arrivals, Short: i.Short}
	}
	return telemetry.Reserve{
		Engine: engine, Bytes: float64(b), Premium: p.Premium, Loss: p.Loss, Bare: p.Bare,
		ToTraining: p.ToTraining, ToRequests: p.ToRequests, ToPrefixes: p.ToPrefixes, Kept: float64(p.PrefixesKept), Displaced: p.Displaced, Spent: p.Spent, Saved: p.Saved,
		Misses: p.Misses, ShadowMisses: p.ShadowMisses, Arrivals: p.Arrived, Short: p.Short, Covered: p.Covered,
		Lot: float64(p.Lot), Patience: p.Patience.Seconds(), CourseCost: p.CourseCost, RentalCost: p.RentalCost,
		With: trial(p.With), Without: trial(p.Without),
	}
}
