package sidecar

import (
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
)

func TestPromiseGoesByTheHourOfArrivalInTheConfigsZone(t *testing.T) {
	c := config.SLO{Limits: config.Limits{TTFT: time.Second}, Zone: "Asia/Kolkata", Objectives: []config.Objective{
		{Name: "office", Days: "mon-fri", Hours: "09:00-18:00", Limits: config.Limits{TTFT: 100 * msec}},
	}}
	s := newScorer(c)
	monday := time.Date(2026, time.June, 1, 3, 29, 0, 0, time.UTC) // 08:59 in Kolkata
	for arrived, want := range map[time.Time]time.Duration{
		monday: time.Second, monday.Add(time.Minute): 100 * msec, monday.Add(9 * time.Hour): 100 * msec, monday.Add(10 * time.Hour): time.Second,
		monday.Add(5*24*time.Hour + time.Hour): time.Second, // Saturday
	} {
		p := s.promise(t.Context(), proxy.Request{ArrivedAt: arrived})
		if got := p.TTFT.For(1); got != want {
			t.Errorf("%v: %v, want %v", arrived, got, want)
		}
	}
	s.clock = monday.Add(time.Hour)
	p := s.promise(t.Context(), proxy.Request{ArrivedAt: s.clock, Stream: true})
	s.clock = monday.Add(20 * time.Hour) // it ends in the night
	r := s.record(50*msec, 10*msec, 2)
	s.done(p, r)
	if got := s.kind(t, "office", slo.TTFT); got.Total.N() != 1 {
		t.Errorf("got %+v, want it counted under what it was promised", got)
	}
	if st := s.state()[0]; st.Hours != "mon,tue,wed,thu,fri 09:00-18:00" {
		t.Errorf("state shows hours %q", st.Hours)
	}
	next := c
	next.Zone = "UTC"
	s.declare(next)
	if p := s.promise(t.Context(), proxy.Request{ArrivedAt: monday.Add(9 * time.Hour)}); p.TTFT.For(1) != 100*msec {
		t.Errorf("after a reload: %v, want 12:29 UTC to be in office hours", p.TTFT)
	}
}
