package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// told is the part of a sidecar that signals reach. The first SIGTERM or SIGINT
// reaches it by the command's context, which Main ends.
type told interface {
	// Hurry cuts what a drain still waits for.
	Hurry()
	// ReloadNow asks for the config to be read again.
	ReloadNow()
}

// signals are those that the process has got and nobody was told of yet.
type signals struct {
	got   chan os.Signal
	ended chan struct{}
	wg    sync.WaitGroup
}

// catchSignals begins to collect SIGHUP, SIGTERM and SIGINT.
func catchSignals() *signals {
	s := &signals{got: make(chan os.Signal, 8), ended: make(chan struct{})}
	signal.Notify(s.got, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)
	return s
}

// tell passes them on until stop: SIGHUP reloads, the second of the others hurries.
func (s *signals) tell(to told) {
	s.wg.Go(func() {
		asked := 0
		for {
			select {
			case <-s.ended:
				return
			case got := <-s.got:
				if got == syscall.SIGHUP {
					to.ReloadNow()
				} else if asked++; asked > 1 {
					to.Hurry()
				}
			}
		}
	})
}

func (s *signals) stop() {
	signal.Stop(s.got)
	close(s.ended)
	s.wg.Wait()
}
