package engine

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// TestVLLMSleepReadingsDoNotWaitForTheQuestionWhetherItIsPaused: a server may be slow
// to answer that.
func TestVLLMSleepReadingsDoNotWaitForTheQuestionWhetherItIsPaused(t *testing.T) {
	s := newSleeper(t)
	reached, read := make(chan struct{}), make(chan struct{})
	var asked atomic.Bool
	s.hang = func(path string, gaveUp <-chan struct{}) {
		if path != "/is_paused" || !asked.CompareAndSwap(false, true) {
			return
		}
		close(reached)
		select {
		case <-read:
		case <-gaveUp:
			t.Error("a second reading waited for the first one's question")
		}
	}
	e := open(t, Config{Kind: KindVLLMSleep, URL: s.URL, BytesPerToken: size.KiB, Timeout: 20 * time.Second})
	done := make(chan error, 1)
	go func() { _, err := e.Observe(t.Context()); done <- err }()
	<-reached
	if got, err := e.Observe(t.Context()); err != nil || got.Held != sleeperPool {
		t.Errorf("got %+v, %v, want the pool as it is", got, err)
	}
	close(read)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestVLLMSleepKeepsTheNoteOfSomebodyElsesPause: an order for the pool that is there
// resumes nothing.
func TestVLLMSleepKeepsTheNoteOfSomebodyElsesPause(t *testing.T) {
	s := newSleeper(t)
	s.paused = true
	e := openSleeper(t, s)
	if _, err := e.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := e.SetBound(t.Context(), 1, sleeperPool)
	if err != nil || !s.paused || !strings.Contains(got.Note, "requests wait until POST /resume") {
		t.Errorf("got %+v, %v, paused %t, want that it stands still, and says so", got, err, s.paused)
	}
}
