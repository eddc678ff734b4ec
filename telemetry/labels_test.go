package telemetry

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestLabelsAreWholeRunes(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"", 8, ""}, {"plain", 8, "plain"}, {"plain", 3, "pla"}, {"aé", 2, "a"}, {"a\xc3", 8, "a"}, {"a\xf0\x9f\x98", 8, "a"},
		{"\xff", 8, "\uFFFD"}, {"a\xffb", 8, "a\uFFFDb"}, {"\xff\xff\xff", 8, "\uFFFD"}, {"x\xffy\xff", 4, "x\uFFFD"}, {"ab\xff", 4, "ab"}, {"\x80\x80", 8, "\uFFFD"},
	} {
		if got := text(c.in, c.most); got != c.want {
			t.Errorf("%q cut to %d bytes: %q, want %q", c.in, c.most, got, c.want)
		}
	}
}

func FuzzLabelIsValidAndShort(f *testing.F) {
	for _, s := range []string{"", "\xff", "é", strings.Repeat("é", 200), "a\xf0\x9f\x98"} {
		f.Add(s, 128)
	}
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = min(max(most, 0), 1<<16)
		got := text(s, most)
		if !utf8.ValidString(got) || len(got) > most {
			t.Errorf("%q cut to %d bytes: %q", s, most, got)
		}
		if utf8.ValidString(s) && len(s) <= most && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// Each of these words comes from outside the sidecar in one way or another.
func TestNoWordFromOutsideBreaksAMetric(t *testing.T) {
	for _, word := range []string{"\xff", strings.Repeat("x", 127) + "\xc3", "\xed\xa0\x80", strings.Repeat("\xff", 1<<16)} {
		m := NewMetrics()
		m.ShowObjectives(func() ([]Objective, []Goodput) {
			return []Objective{{SLO: word, Kind: word, Windows: []ObjectiveWindow{{Window: word}}, Quantiles: map[float64]float64{0.5: 1}}}, []Goodput{{SLO: word, Window: word}}
		})
		m.RequestStarted()
		m.RequestDone(Request{Model: word, Outcome: word, TTFT: time.Second, Held: time.Second, PromptTokens: 1, OutputTokens: 1, TokenSource: word})
		m.Judged(word, word, word)
		m.Override(word, word)
		m.Handover(true, word, word, time.Second, 1)
		m.Memory(word, word, word, 1)
		m.TrainingSamples(word, word, 1)
		if shown := scrape(t, m); !strings.Contains(shown, "lull_requests_in_flight 0\n") || !strings.Contains(shown, "lull_training_samples{") || !utf8.ValidString(shown) {
			t.Errorf("%.20q: the metrics are not shown", word)
		}
		m.ForgetTrainer(word, word, word, word)
		if shown := scrape(t, m); strings.Contains(shown, "lull_training_samples{") || strings.Contains(shown, "lull_memory_bytes{") {
			t.Errorf("%.20q: the trainer is not forgotten", word)
		}
	}
}
