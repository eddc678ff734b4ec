package emulator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/lull-project/lull/size"
)

// heapLimit is a soft limit on the process's Go memory: its size is "the
// device", so garbage must not show. Only bodies of many megabytes come near it.
const heapLimit = 64 << 20

// ready is the line that Run prints once.
type ready struct {
	Listening string     `json:"listening"`
	PID       int        `json:"pid"`
	Baseline  size.Bytes `json:"baseline_bytes"`
	Resident  size.Bytes `json:"resident_bytes"`
}

// Run is lull emulate: it starts the server, prints the ready line on stdout and
// returns when ctx ends (nil) or the server cannot go on. While it
// runs it limits the whole process's heap; Start does not.
func Run(ctx context.Context, cfg Config, stdout io.Writer) error {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(heapLimit))
	s, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	st := s.State()
	line, err := json.Marshal(ready{Listening: s.Addr(), PID: st.PID, Baseline: st.Baseline, Resident: st.Resident})
	if err == nil {
		_, err = stdout.Write(append(line, '\n'))
	}
	if err != nil {
		s.cancel(fmt.Errorf("emulate: print the ready line: %w", err))
		return fmt.Errorf("emulate: print the ready line: %w; the server ends", err)
	}
	return s.Wait()
}
