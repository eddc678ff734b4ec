package demo

import "testing"

// risen is a job that was granted 8 MiB more between its first and second step.
func risen() *trainLog {
	return &trainLog{
		ready: &trainLine{T: unixUS(0), Floor: int64(50 * m)},
		steps: []trainLine{
			{T: unixUS(100), Floor: int64(50 * m)},
			{T: unixUS(200), Floor: int64(58 * m)},
			{T: unixUS(300), Floor: int64(54 * m)}, // a floor once granted stays granted
		},
	}
}

func TestARisenFloorCountsFromTheLineBeforeTheOneThatLogsIt(t *testing.T) {
	f := risen().floors()
	for millis, want := range map[float64]int64{-10: 50, 0: 50, 50: 50, 100: 50, 100.1: 58, 200: 58, 250: 58, 900: 58} {
		if got := f.at(at(millis)); int64(got) != want<<20 {
			t.Errorf("at %v ms: got %v, want %d MiB", millis, got, want)
		}
	}
	if got := (&trainLog{}).floors().at(t0); got != 0 {
		t.Errorf("without a log: got %v, want 0", got)
	}
}

func TestTheAuditorJudgesByTheFloorInForce(t *testing.T) {
	c := buildCeilings([]sidecarEvent{order(0, 1, 100*m, false)})
	d := yardstick{Capacity: 1000 * m, Floor: 50 * m, Risen: risen().floors()}
	v := judge([]rawSample{
		raw(90, 0, 158*m),    // above the old floor, before the rise
		raw(150, 0, 158*m),   // the same bytes, granted by now
		raw(160, 0, 158*m+1), // one byte above the risen floor
	}, 0, d, c)
	if len(v.Violations) != 2 || v.Violations[0].Limit != 150*m || v.Violations[1].Limit != 158*m {
		t.Fatalf("got %+v, want the first sample above 150 MiB and the last above 158 MiB", v.Violations)
	}
	if got, want := v.heldMean(d, at(140), at(155)), float64(100*m); got != want {
		t.Errorf("held beyond the risen floor: got %v, want %v", got, want)
	}
}
