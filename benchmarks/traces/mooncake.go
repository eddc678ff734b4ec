package traces

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// coarseGrid is from where on timestamps are a grid and not times: requests do
// not arrive together every second.
const coarseGrid = time.Second

// mooncakeLine is one request; what else a line holds is left alone.
type mooncakeLine struct {
	Timestamp *int64 `json:"timestamp"` // ms
	Input     *int   `json:"input_length"`
	Output    *int   `json:"output_length"`
}

// maxLine bounds one line of JSON: a million tokens in blocks of 512 are 2,000
// block numbers.
const maxLine = 1 << 20

// readMooncake reads JSON lines in order of time. The published file's
// timestamps lie on a grid of 3 s; each arrival is spread evenly at random over
// the grid's step, so that the grid makes no bursts.
func readMooncake(name string, r io.Reader, rng *rand.Rand) ([]Row, error) {
	var rows []Row
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	line := 0
	for sc.Scan() {
		line++
		if len(sc.Bytes()) == 0 {
			continue
		}
		row, err := parseMooncake(sc.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if n := len(rows); n > 0 && row.At < rows[n-1].At {
			return nil, fmt.Errorf("%s:%d: timestamp went back from %v to %v, want rows in order of time", name, line, rows[n-1].At, row.At)
		}
		rows = append(rows, row)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w, want lines of at most %d bytes", name, line+1, err, maxLine)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s:1: no rows, want at least one", name)
	}
	spread(rows, rng)
	first := rows[0].At
	for i := range rows {
		rows[i].At -= first
	}
	return rows, nil
}

func parseMooncake(text []byte) (Row, error) {
	var l mooncakeLine
	if err := json.Unmarshal(text, &l); err != nil {
		return Row{}, fmt.Errorf("got no JSON object of a request: %w", err)
	}
	const day = 24 * 60 * 60 * 1000
	switch {
	case l.Timestamp == nil || *l.Timestamp < 0 || *l.Timestamp > 3650*day:
		return Row{}, errors.New("timestamp: want milliseconds, 0 or more, up to ten years")
	case l.Input == nil || *l.Input < 0:
		return Row{}, errors.New("input_length: want a whole number of tokens, 0 or more")
	case l.Output == nil || *l.Output < 0:
		return Row{}, errors.New("output_length: want a whole number of tokens, 0 or more")
	}
	return Row{At: time.Duration(*l.Timestamp) * time.Millisecond, PromptTokens: *l.Input, OutputTokens: *l.Output}, nil
}

// spread moves rows inside the step of their grid, where there is one, and keeps
// their order. The step is the least gap between different timestamps: the
// published ones stray from 3 s by a millisecond.
func spread(rows []Row, rng *rand.Rand) {
	step := time.Duration(0)
	for i := 1; i < len(rows); i++ {
		if gap := rows[i].At - rows[i-1].At; gap > 0 && (step == 0 || gap < step) {
			step = gap
		}
	}
	if step < coarseGrid {
		return
	}
	var at []time.Duration
	for lo := 0; lo < len(rows); {
		hi := lo
		for hi < len(rows) && rows[hi].At == rows[lo].At {
			hi++
		}
		at = at[:0]
		for range hi - lo {
			at = append(at, rows[lo].At+time.Duration(rng.Int64N(int64(step))))
		}
		slices.Sort(at)
		for i, t := range at {
			rows[lo+i].At = t
		}
		lo = hi
	}
}
