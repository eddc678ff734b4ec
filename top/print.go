package top

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/size"
)

// categories are the columns of memory, in the order in which they are shown; ones
// that nobody has are left out.
var categories = []struct{ name, title string }{
	{"weights", "WEIGHTS"}, {"kv_cache", "KV"}, {"activations", "ACTIV."}, {"gradients", "GRAD."},
	{"optimizer_state", "OPTIM."}, {"workspace", "WORKSP."}, {"cache", "CACHE"}, {"other", "OTHER"},
}

// lastHandovers are how many of them are listed.
const lastHandovers = 5

// Print writes the screen as plain text.
func (s Screen) Print(w io.Writer) error {
	var b strings.Builder
	s.head(&b)
	switch {
	case s.State.Ledger == nil:
		b.WriteString("\nNo core to ask yet: every engine must have said what it is.\n")
	case len(s.State.Ledger.Devices) == 0:
		s.relaying(&b)
	default:
		s.devices(&b)
		s.memory(&b)
		s.parties(&b)
		s.handovers(&b)
	}
	s.objectives(&b)
	for _, p := range s.State.Problems {
		fmt.Fprintf(&b, "! %s\n", clean(p))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Screen) head(b *strings.Builder) {
	lending := "lending"
	if !s.State.Lending {
		lending = "nothing to lend"
	}
	fmt.Fprintf(b, "lull %s  %s  session %d  %s  %d requests now", s.Source, s.At.Format(time.TimeOnly), s.State.Session, lending, s.State.Requests)
	if l := s.State.Ledger; l != nil && len(l.Devices) > 0 {
		fmt.Fprintf(b, "  a handover takes %v on average, few over %v (mean + 4 deviations)", milliseconds(l.Expected), milliseconds(l.Tail))
	}
	b.WriteString("\n")
}

// relaying is all that there is to say where no server stands on a device.
func (s Screen) relaying(b *strings.Builder) {
	var servers []string
	for _, e := range s.State.Engines {
		servers = append(servers, fmt.Sprintf("%s (%s)", clean(e.Name), clean(e.Kind)))
	}
	who := "a server that is not known yet"
	if len(servers) > 0 {
		who = strings.Join(servers, ", ")
	}
	r := s.State.Served
	fmt.Fprintf(b, "\nRelaying %s, on no device: nothing is lent. %d requests ended since the start", who, r.Requests)
	if r.TTFTSamples > 0 {
		fmt.Fprintf(b, ", TTFT P50 %v, P99 %v (n = %d)", milliseconds(r.TTFTP50), milliseconds(r.TTFTP99), r.TTFTSamples)
	}
	b.WriteString(".\n")
}

// milliseconds is a duration as it is shown, to a tenth of one.
func milliseconds(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// table writes rows under titles, the first column to the left, the others to the
// right.
func table(b *strings.Builder, titles []string, rows [][]string) {
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	wide := len(titles[0])
	for _, r := range rows {
		wide = max(wide, len(r[0]))
	}
	for _, r := range append([][]string{titles}, rows...) {
		fmt.Fprintf(t, "%-*s\t%s\t\n", wide, r[0], strings.Join(r[1:], "\t"))
	}
	_ = t.Flush() // a strings.Builder takes everything
}

func (s Screen) devices(b *strings.Builder) {
	var rows [][]string
	for _, d := range s.State.Ledger.Devices {
		rows = append(rows, []string{clean(d.ID), d.Capacity.String(), d.Headroom.String(), d.Free.String(), fmt.Sprint(d.Breaches), fmt.Sprint(d.Deferred)})
	}
	table(b, []string{"DEVICE", "CAPACITY", "HEADROOM", "FREE", "BREACHES", "DEFERRED"}, rows)
}

// memory is owners by categories, and what could be taken back.
func (s Screen) memory(b *strings.Builder) {
	titles := []string{"OWNER"}
	var shown []string
	for _, c := range categories {
		for _, o := range s.State.Memory {
			if o.Bytes[c.name] != 0 {
				titles, shown = append(titles, c.title), append(shown, c.name)
				break
			}
		}
	}
	titles = append(titles, "ALL", "<5ms", "<50ms", "<1s")
	var rows [][]string
	for _, o := range s.State.Memory {
		row, all := []string{clean(o.Owner) + " on " + clean(o.Device)}, size.Bytes(0)
		for _, b := range o.Bytes {
			all += size.Bytes(b)
		}
		for _, c := range shown {
			row = append(row, short(o.Bytes[c]))
		}
		row = append(row, all.String(), short(o.Reclaimable["5ms"]), short(o.Reclaimable["50ms"]), short(o.Reclaimable["1s"]))
		rows = append(rows, row)
	}
	table(b, titles, rows)
}

// short is bytes, or a dash for none.
func short(b int64) string {
	if b == 0 {
		return "-"
	}
	return size.Bytes(b).String()
}

func (s Screen) parties(b *strings.Builder) {
	var rows [][]string
	for _, e := range s.State.Ledger.Engines {
		word := clean(e.Reserve.Why)
		if e.Down {
			word = "down"
		}
		rows = append(rows, []string{clean(e.ID), e.Pool.String(), e.Bound.String(), e.Target.String(), e.Held.String(), e.Reserve.Bytes.String(), word})
	}
	table(b, []string{"ENGINE", "POOL", "BOUND", "TARGET", "HELD", "RESERVE", "WHY"}, rows)
	rows = nil
	for _, t := range s.State.Ledger.Trainers {
		word := "-"
		switch {
		case t.Gone:
			word = "gone"
		case t.Owed:
			word = "owes an order"
		}
		rows = append(rows, []string{clean(t.ID), clean(t.Device), t.Floor.String(), t.Budget.String(), t.Held.String(), word})
	}
	if len(rows) > 0 {
		table(b, []string{"TRAINER", "DEVICE", "FLOOR", "BUDGET", "HELD", "STATE"}, rows)
	}
	for _, t := range s.State.Ledger.Trainers {
		if t.Why != "" {
			fmt.Fprintf(b, "%s has too little: %s\n", clean(t.ID), clean(t.Why))
		}
	}
}

func (s Screen) handovers(b *strings.Builder) {
	done, superseded, late := 0, 0, 0
	for _, h := range s.Handovers {
		if h.Direction == "shrink" && s.At.Sub(h.At) < time.Minute {
			switch h.Result {
			case "late", "unconfirmed", "gone":
				late++
			case "superseded":
				superseded++
			default:
				done++
			}
		}
	}
	fmt.Fprintf(b, "\nShrinks that ended in the last minute: %d in time, %d late or not at all, %d superseded by a later order.\n", done, late, superseded)
	if len(s.Handovers) == 0 {
		return
	}
	var rows [][]string
	for _, h := range s.Handovers[:min(len(s.Handovers), lastHandovers)] {
		took := "-"
		if h.TookUS > 0 {
			took = milliseconds(time.Duration(h.TookUS) * time.Microsecond).String()
		}
		rows = append(rows, []string{clean(h.Direction) + " " + clean(h.Trainer), clean(h.Reason), h.From.String(), h.To.String(), took, clean(h.How), clean(h.Result)})
	}
	table(b, []string{"LAST HANDOVERS", "REASON", "FROM", "TO", "TOOK", "HOW", "RESULT"}, rows)
}

// objectives are the attainment of each, by window.
func (s Screen) objectives(b *strings.Builder) {
	var rows [][]string
	titles := []string{"OBJECTIVE", "TARGET"}
	for _, o := range s.State.SLO {
		for _, k := range o.Objectives {
			row := []string{clean(o.Name) + " " + clean(k.Objective), fmt.Sprintf("%.4g%%", 100*k.Target)}
			for i, w := range k.Windows {
				if len(titles) < i+3 {
					titles = append(titles, strings.ToUpper(clean(w.Window)))
				}
				cell := "-"
				if w.Attainment != nil {
					cell = fmt.Sprintf("%.2f%%", 100**w.Attainment)
				}
				row = append(row, cell)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		table(b, titles, rows)
	}
}

// clean keeps what others named from steering the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
