package slo

import (
	"fmt"
	"strings"
	"time"
)

// Moment is a time of the week as a clock on the wall shows it.
type Moment struct {
	Day    time.Weekday
	Minute int // of the day, 0 to 1439
}

// MomentOf reads the clock of t's own zone.
func MomentOf(t time.Time) Moment {
	return Moment{t.Weekday(), t.Hour()*60 + t.Minute()}
}

// Hours are when an objective holds; the zero value is always.
type Hours struct {
	// From is the first minute of the day at which it holds, To the first at which it
	// no longer does; To before From goes over midnight. Alike they are the whole day.
	From, To int
	// Days has the bit 1 << time.Weekday for each day on which it begins; 0 is all.
	Days uint8
}

const (
	wholeDay = 24 * 60
	allDays  = 1<<7 - 1
)

// Hold says whether it holds then. What goes over midnight belongs to the day on
// which it began.
func (h Hours) Hold(at Moment) bool {
	today, yesterday := h.on(at.Day), h.on((at.Day+6)%7)
	switch {
	case h.From == h.To:
		return today
	case h.From < h.To:
		return today && h.From <= at.Minute && at.Minute < h.To
	}
	return today && at.Minute >= h.From || yesterday && at.Minute < h.To
}

func (h Hours) on(day time.Weekday) bool { return h.Days == 0 || h.Days&(1<<day) != 0 }

var dayNames = [7]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// String is Hours as ParseHours reads them, "" for always.
func (h Hours) String() string {
	var parts []string
	if h.Days != 0 && h.Days != allDays {
		var days []string
		for i := range dayNames {
			if day := (time.Monday + time.Weekday(i)) % 7; h.on(day) {
				days = append(days, dayNames[day])
			}
		}
		parts = append(parts, strings.Join(days, ","))
	}
	if h.From != h.To {
		parts = append(parts, clock(h.From)+"-"+clock(h.To))
	}
	return strings.Join(parts, " ")
}

func clock(minute int) string { return fmt.Sprintf("%02d:%02d", minute/60, minute%60) }

// ParseHours reads days such as mon-fri or sat,sun and hours such as 08:00-18:00
// or 22:00-06:00; "" is all days and the whole day. The error says which of the two
// is wrong by its first word.
func ParseHours(days, hours string) (Hours, error) {
	var h Hours
	if days != "" {
		if h.Days = daysOf(days); h.Days == 0 {
			return Hours{}, fmt.Errorf("days: got %q, want days such as mon-fri or sat,sun", days)
		}
	}
	if hours != "" {
		from, to, _ := strings.Cut(hours, "-")
		h.From, h.To = minuteOf(from), minuteOf(to)
		if h.From < 0 || h.To < 0 || h.From == wholeDay || h.From == h.To {
			return Hours{}, fmt.Errorf("hours: got %q, want two different times of the day, such as 08:00-18:00 or 22:00-06:00", hours)
		}
	}
	return h, nil
}

// daysOf is 0 for what names no days.
func daysOf(text string) (days uint8) {
	for part := range strings.SplitSeq(strings.ToLower(text), ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, to := dayOf(first), dayOf(last)
		if from < 0 || to < 0 {
			return 0
		}
		for n := range (to-from+7)%7 + 1 {
			days |= 1 << ((from + n) % 7)
		}
	}
	return days
}

// dayOf is -1 for what is no day.
func dayOf(name string) int {
	for i, n := range dayNames {
		if n == name {
			return i
		}
	}
	return -1
}

// minuteOf is -1 for what is no HH:MM; 24:00 is the end of a day.
func minuteOf(text string) int {
	if len(text) != len("HH:MM") || text[2] != ':' {
		return -1
	}
	var n [4]int
	for i, c := range []byte{text[0], text[1], text[3], text[4]} {
		if c < '0' || c > '9' {
			return -1
		}
		n[i] = int(c - '0')
	}
	h, m := n[0]*10+n[1], n[2]*10+n[3]
	if m > 59 || h*60+m > wholeDay {
		return -1
	}
	return h*60 + m
}
