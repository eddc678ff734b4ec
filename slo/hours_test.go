package slo

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHoursHoldAtTheTimesThatTheyName(t *testing.T) {
	for _, c := range []struct {
		days, hours string
		day         time.Weekday
		clock       string
		want        bool
	}{
		{"", "", time.Sunday, "00:00", true},
		{"mon-fri", "08:00-18:00", time.Monday, "07:59", false},
		{"mon-fri", "08:00-18:00", time.Monday, "08:00", true},
		{"mon-fri", "08:00-18:00", time.Friday, "17:59", true},
		{"mon-fri", "08:00-18:00", time.Friday, "18:00", false},
		{"mon-fri", "08:00-18:00", time.Saturday, "12:00", false},
		{"sat,sun", "", time.Sunday, "23:59", true},
		{"sat-mon", "", time.Tuesday, "00:00", false},
		{"fri", "22:00-06:00", time.Friday, "05:00", false},
		{"fri", "22:00-06:00", time.Friday, "22:00", true},
		{"fri", "22:00-06:00", time.Saturday, "05:59", true}, // Friday's night
		{"fri", "22:00-06:00", time.Saturday, "06:00", false},
		{"sun", "20:00-24:00", time.Sunday, "23:59", true},
		{"sun", "20:00-24:00", time.Monday, "00:00", false},
	} {
		h, err := ParseHours(c.days, c.hours)
		if got := h.Hold(Moment{c.day, minuteOf(c.clock)}); err != nil || got != c.want {
			t.Errorf("%q %q on %v at %s: %v, %v; want %v", c.days, c.hours, c.day, c.clock, got, err, c.want)
		}
	}
}

// TestHoursEqualAWeekOfMinutes compares with a table of the week that is filled in
// from each day's beginning.
func TestHoursEqualAWeekOfMinutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Hours{From: rapid.IntRange(0, wholeDay-1).Draw(t, "from"), To: rapid.IntRange(0, wholeDay).Draw(t, "to"), Days: rapid.Uint8Range(0, allDays).Draw(t, "days")}
		long := (h.To - h.From + wholeDay) % wholeDay
		if long == 0 && h.To != h.From {
			long = wholeDay // 00:00-24:00
		}
		first := h.From
		if h.From == h.To {
			long, first = wholeDay, 0
		}
		var week [7 * wholeDay]bool
		for day := range 7 {
			if h.Days != 0 && h.Days&(1<<day) == 0 {
				continue
			}
			for m := range long {
				week[(day*wholeDay+first+m)%len(week)] = true
			}
		}
		for m, want := range week {
			if got := h.Hold(Moment{time.Weekday(m / wholeDay), m % wholeDay}); got != want {
				t.Fatalf("%+v on day %d at %s: %v, want %v", h, m/wholeDay, clock(m%wholeDay), got, want)
			}
		}
	})
}

func TestHoursAreSpelledAsTheyAreRead(t *testing.T) {
	for _, c := range []struct{ days, hours, want string }{
		{"", "", ""}, {"mon-sun", "", ""}, {"Mon-Wed", "", "mon,tue,wed"}, {"sun, sat", "22:00-06:00", "sat,sun 22:00-06:00"}, {"", "00:00-24:00", "00:00-24:00"},
	} {
		if h, err := ParseHours(c.days, c.hours); err != nil || h.String() != c.want {
			t.Errorf("%q %q: got %q, %v; want %q", c.days, c.hours, h, err, c.want)
		}
	}
}

func TestBadHoursSayWhatIsWanted(t *testing.T) {
	for _, days := range []string{"monday", "mon-", "-fri", "mon,,tue", "mon-tue-wed", " "} {
		if h, err := ParseHours(days, ""); err == nil || err.Error() != `days: got "`+days+`", want days such as mon-fri or sat,sun` || h != (Hours{}) {
			t.Errorf("%q: got %v, %v", days, h, err)
		}
	}
	for _, hours := range []string{"8-18", "08:00", "08:00-", "-08:00", "08:00-08:00", "24:00-06:00", "08:60-09:00", "08:00-24:01", "08:00 - 18:00", "+8:00-18:00"} {
		if h, err := ParseHours("", hours); err == nil || err.Error() != `hours: got "`+hours+`", want two different times of the day, such as 08:00-18:00 or 22:00-06:00` || h != (Hours{}) {
			t.Errorf("%q: got %v, %v", hours, h, err)
		}
	}
}

func FuzzHoursThatAreReadAreReadAgain(f *testing.F) {
	f.Add("mon-fri", "08:00-18:00")
	f.Add("sat,sun", "22:00-06:00")
	f.Add("sun-sat", "00:00-24:00")
	f.Fuzz(func(t *testing.T, days, hours string) {
		h, err := ParseHours(days, hours)
		if err != nil {
			return
		}
		var again, at string // as String spells them
		for _, part := range strings.Fields(h.String()) {
			if strings.Contains(part, ":") {
				at = part
			} else {
				again = part
			}
		}
		back, err := ParseHours(again, at)
		if err != nil || back.String() != h.String() {
			t.Errorf("%q %q: %v is read as %v, %v", days, hours, h, back, err)
		}
	})
}

func TestMomentIsTheWallClocksOfTheZone(t *testing.T) {
	utc := time.Date(2026, time.March, 1, 23, 30, 0, 0, time.UTC) // a Sunday
	if got := MomentOf(utc.In(time.FixedZone("", 3600))); got != (Moment{time.Monday, 30}) {
		t.Errorf("got %+v, want Monday, 00:30", got)
	}
}

func TestFirstObjectiveThatHoldsIsPicked(t *testing.T) {
	office, _ := ParseHours("mon-fri", "08:00-18:00")
	all := []Objective{{Name: "office", Hours: office}, {Name: "default"}}
	if got := Pick(all, "m", "", Moment{time.Tuesday, 9 * 60}); got != 0 {
		t.Errorf("on a workday: %d, want the office's", got)
	}
	if got := Pick(all, "m", "", Moment{time.Tuesday, 20 * 60}); got != 1 {
		t.Errorf("in the evening: %d, want the default", got)
	}
}
