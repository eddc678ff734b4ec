package sidecar

import (
	"errors"
	"strings"
	"testing"

	"github.com/lull-project/lull/engine"
)

func TestWhoAsksIsToldThatThisIsLull(t *testing.T) {
	l := newLone(t, whole("x"), nil, nil)
	for _, url := range []string{l.base, l.admin} {
		cfg := engine.DefaultProbe()
		cfg.URL = url
		if _, err := engine.Probe(t.Context(), cfg); !errors.Is(err, engine.ErrLull) || !strings.Contains(err.Error(), url) {
			t.Errorf("%s: got %v, want it known as Lull's", url, err)
		}
	}
	status, _, body, err := l.call("POST", l.base+chatPath, "{}", map[string][]string{engine.AskHeader: {"1"}})
	if err != nil || status != 421 || body != ownAnswer {
		t.Errorf("got %d %s, %v", status, body, err)
	}
	l.chat("x")
}
