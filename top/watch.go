package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Config is what a run of Watch shows, and how often.
type Config struct {
	// URL is the admin listener's.
	URL string
	// Every is the time from one screen to the next.
	Every time.Duration
	// Once prints one screen as plain text and ends.
	Once bool
	// Size is the terminal's columns and rows, asked for each screen since windows
	// change; nil or 0 where nobody knows, and nothing is cut.
	Size func() (columns, rows int)
}

// DefaultConfig is a screen a second of the default admin listener.
func DefaultConfig() Config {
	return Config{URL: "http://127.0.0.1:9797", Every: time.Second}
}

// Validate names the key, the value and the rule of what is wrong.
func (c Config) Validate() error {
	if c.Every < 100*time.Millisecond {
		return fmt.Errorf("top: every: got %v, want at least 100ms", c.Every)
	}
	return nil
}

// The terminal's alternate screen, so that what was there before comes back; its
// upper left corner, and the end of a line and of the screen cleared.
const (
	enter, leave          = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	corner, toEnd, endAll = "\x1b[H", "\x1b[K", "\x1b[J"
)

// Watch draws a screen every Every until ctx ends, which is no error. A sidecar that
// does not answer is said on the screen and asked again; with Once it is the error.
func Watch(ctx context.Context, w io.Writer, cfg Config, client *http.Client, now func() time.Time) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Once {
		ask, cancel := context.WithTimeout(ctx, max(cfg.Every, 2*time.Second))
		defer cancel()
		s, err := Fetch(ask, client, cfg.URL, now())
		if err != nil {
			return err
		}
		return s.Print(w)
	}
	if _, err := io.WriteString(w, enter); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(w, leave) }()
	tick := time.NewTicker(cfg.Every)
	defer tick.Stop()
	for {
		if err := draw(ctx, w, cfg, client, now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// draw writes one screen over the last.
func draw(ctx context.Context, w io.Writer, cfg Config, client *http.Client, at time.Time) error {
	ask, cancel := context.WithTimeout(ctx, max(cfg.Every, 2*time.Second))
	defer cancel()
	var text bytes.Buffer
	s, err := Fetch(ask, client, cfg.URL, at)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil
	case err != nil:
		fmt.Fprintf(&text, "%s  %v\n", at.Format(time.TimeOnly), err)
	default:
		if err := s.Print(&text); err != nil {
			return err
		}
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if cfg.Size != nil {
		lines = fit(lines, cfg.Size)
	}
	_, err = io.WriteString(w, corner+strings.Join(lines, toEnd+"\n")+toEnd+endAll)
	return err
}
