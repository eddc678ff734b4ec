package sidecar

import (
	"fmt"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/endpoint"
)

// ReadableTLS reads the files of every engine's TLS once: a fault in them is told at
// the start or at the reload, and not by the first request. The error names the
// key.
func ReadableTLS(f config.File) error {
	for i, e := range f.Engines {
		at, err := endpoint.Parse(e.URL)
		if err != nil {
			return fmt.Errorf("engines[%d].url: %w", i, err)
		}
		if err := endpoint.NewDialer(at, e.TLS, 0).Check(); err != nil {
			return fmt.Errorf("engines[%d].%w", i, err)
		}
	}
	return nil
}
