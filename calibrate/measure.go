package calibrate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// cell is one prompt length with one answer length.
type cell struct{ words, answer int }

// cells are all of them, in the order of the flags.
func (c Config) cells() []cell {
	var out []cell
	for _, p := range c.Prompts {
		for _, a := range c.Answers {
			out = append(out, cell{p, a})
		}
	}
	return out
}

// measure warms the server up and measures every cell Runs times. The order is
// drawn anew in each round, so that a drift of the server does not look like an
// effect of length.
func measure(ctx context.Context, cfg Config, c *client, w *watch) ([]Measured, error) {
	if err := w.idle(ctx); err != nil {
		return nil, err
	}
	if err := warmUp(ctx, cfg, c, w); err != nil {
		return nil, err
	}
	var all []Measured
	cells := cfg.cells()
	for range cfg.Runs {
		for _, i := range c.draw.Perm(len(cells)) {
			if err := w.idle(ctx); err != nil {
				return nil, err
			}
			m, err := c.send(ctx, cells[i].words, cells[i].answer, func() {})
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
	}
	if err := w.idle(ctx); err != nil {
		return nil, err
	}
	return all, checkAnswers(all)
}

// warmUp sends requests of every length in turn, the longest first, that are not
// measured, and looks at the server's load in the midst of each.
func warmUp(ctx context.Context, cfg Config, c *client, w *watch) error {
	cells := cfg.cells()
	for i := range cfg.WarmUp {
		at := cells[len(cells)-1-i%len(cells)]
		var looked error
		first := func() { looked = w.beside(ctx) }
		_, err := c.send(ctx, at.words, at.answer, first)
		var refused *statusError
		if errors.As(err, &refused) && !c.plain && (refused.status == http.StatusBadRequest || refused.status == http.StatusUnprocessableEntity) {
			c.plain = true // a strict server: once more without ignore_eos
			_, err = c.send(ctx, at.words, at.answer, first)
		}
		if err != nil {
			return err
		}
		if looked != nil {
			return looked
		}
	}
	return nil
}

// checkAnswers wants a gap somewhere.
func checkAnswers(all []Measured) error {
	for _, m := range all {
		if len(m.Gaps) > 0 {
			return nil
		}
	}
	return fmt.Errorf("calibrate: got %d answers of a single chunk each, want at least two chunks somewhere: there is no gap to measure; nothing is written", len(all))
}
