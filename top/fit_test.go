package top

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLinesAreCutToTheWindow(t *testing.T) {
	lines := []string{"one", "häuser", "three", "four"}
	for name, c := range map[string]struct {
		columns, rows int
		want          []string
	}{
		"unknown":        {0, 0, lines},
		"large":          {80, 24, lines},
		"just so":        {6, 4, lines},
		"narrow":         {3, 24, []string{"one", "häu", "thr", "fou"}},
		"low":            {80, 3, []string{"one", "häuser", "... and 2 more lines, in a higher window"}},
		"one row":        {80, 1, []string{"... and 4 more lines, in a higher window"}},
		"low and narrow": {5, 2, []string{"one", "... a"}},
	} {
		if got := fit(slices.Clone(lines), func() (int, int) { return c.columns, c.rows }); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestScreenFollowsTheWindow: it is made narrower while it is watched.
func TestScreenFollowsTheWindow(t *testing.T) {
	url, client := answering(t, `{"session":3}`)
	columns := 200
	w := &terminal{want: "\nNo \x1b[K", came: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	size := func() (int, int) { // on Watch's own goroutine
		defer func() { columns = 3 }()
		return columns, 24
	}
	go func() { // ends with ctx
		ended <- Watch(ctx, w, Config{URL: url, Every: 100 * time.Millisecond, Size: size}, client, time.Now)
	}()
	<-w.came
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(strings.TrimPrefix(w.b.String(), enter+corner), corner)
	if !strings.HasPrefix(first, "lull "+url) || !strings.Contains(first, "No core to ask yet: every engine must have said what it is.") {
		t.Errorf("wide: got %q, want whole lines", first)
	}
	if next, _, _ := strings.Cut(rest, corner); next != "lul\x1b[K\n\x1b[K\nNo \x1b[K\x1b[J" {
		t.Errorf("narrow: got %q, want three columns", next)
	}
}
