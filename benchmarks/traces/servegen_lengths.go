package traces

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lengthWindow is a client's lengths from a time on.
type lengthWindow struct {
	from          time.Duration
	input, output histogram
}

// histogram is lengths in order with their cumulative shares.
type histogram struct {
	tokens []int
	upTo   []float64
}

// parseLengths reads a chunk file: an object of windows, named by their start in
// seconds, each with two texts "{tokens: share, ...}". Empty windows are left
// out: the one before them holds on.
func parseLengths(name string, text []byte) ([]lengthWindow, error) {
	var raw map[string]struct {
		Input  string `json:"input_tokens"`
		Output string `json:"output_tokens"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("%s: got no JSON object of windows: %w", name, err)
	}
	var windows []lengthWindow
	for start, w := range raw { // sorted below
		s, err := strconv.ParseFloat(start, 64)
		if err != nil || !(s >= 0 && s < math.MaxInt32) {
			return nil, fmt.Errorf("%s: window %q: want its start in seconds", name, start)
		}
		in, err := parseHistogram(w.Input)
		if err != nil {
			return nil, fmt.Errorf("%s: window %s: input_tokens: %w", name, start, err)
		}
		out, err := parseHistogram(w.Output)
		if err != nil {
			return nil, fmt.Errorf("%s: window %s: output_tokens: %w", name, start, err)
		}
		if len(in.tokens) > 0 && len(out.tokens) > 0 {
			windows = append(windows, lengthWindow{from: time.Duration(s * float64(time.Second)), input: in, output: out})
		}
	}
	slices.SortFunc(windows, func(a, b lengthWindow) int { return cmp.Compare(a.from, b.from) })
	return windows, nil
}

// parseHistogram reads "{172: 7.4e-05, 173: 0.1}".
func parseHistogram(text string) (histogram, error) {
	body, opened := strings.CutPrefix(strings.TrimSpace(text), "{")
	body, closed := strings.CutSuffix(body, "}")
	if !opened || !closed {
		return histogram{}, fmt.Errorf("got %.40q, want {tokens: share, ...}", text)
	}
	type entry struct {
		tokens int
		share  float64
	}
	var entries []entry
	for pair := range strings.SplitSeq(body, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, _ := strings.Cut(pair, ":")
		n, err := strconv.Atoi(strings.TrimSpace(k))
		share, err2 := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || err2 != nil || n < 0 || !(share >= 0 && share < math.MaxInt32) {
			return histogram{}, fmt.Errorf("got %.40q, want tokens: share, both 0 or more", pair)
		}
		entries = append(entries, entry{n, share})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.tokens, b.tokens) })
	var h histogram
	total := 0.0
	for _, e := range entries {
		if e.share > 0 {
			total += e.share
			h.tokens, h.upTo = append(h.tokens, e.tokens), append(h.upTo, total)
		}
	}
	return h, nil
}

// draw takes both lengths from the window that holds at; before the first window
// there is none.
func draw(windows []lengthWindow, at time.Duration, rng *rand.Rand) (prompt, output int, ok bool) {
	i, found := slices.BinarySearchFunc(windows, at, func(w lengthWindow, t time.Duration) int { return cmp.Compare(w.from, t) })
	if !found {
		i--
	}
	if i < 0 {
		return 0, 0, false
	}
	return windows[i].input.draw(rng), windows[i].output.draw(rng), true
}

func (h histogram) draw(rng *rand.Rand) int {
	x := rng.Float64() * h.upTo[len(h.upTo)-1]
	i, _ := slices.BinarySearch(h.upTo, x)
	return h.tokens[min(i, len(h.tokens)-1)]
}
