package demo

import (
	"context"
	"strconv"

	"github.com/lull-project/lull/size"
)

// emulatorReady is the ready line of `lull emulate`.
type emulatorReady struct {
	Listening string     `json:"listening"`
	PID       int        `json:"pid"`
	Baseline  size.Bytes `json:"baseline_bytes"`
}

// startEmulator starts `lull emulate` and waits until it serves.
func (r *runner) startEmulator(ctx context.Context, logs string, alone bool) (*llmServer, error) {
	args := emulateArgs(r.sizing)
	if alone {
		args = append(args, "--static-pool")
	}
	p, err := startProc(procSpec{
		Name: "engine", Path: r.opts.Exe, Args: args,
		Cores: r.place.Server, LogDir: logs, Ready: true,
	})
	if err != nil {
		return nil, err
	}
	var ready emulatorReady
	if err := p.awaitReady(ctx, startLimit, &ready); err != nil {
		p.stop(stopGrace)
		return nil, err
	}
	return &llmServer{
		proc: p, url: baseURL(ready.Listening), pids: []int{ready.PID}, baseline: ready.Baseline,
		kind: "emulator", pid: ready.PID,
	}, nil
}

// emulateArgs is `lull emulate` at the demo's scale.
func emulateArgs(s Sizing) []string {
	return []string{
		"emulate", "--listen", "127.0.0.1:0", "--model", servedModel,
		"--calibration", s.GPU + "|" + s.Model,
		"--pool", s.Elastic.String(), "--resident", s.Resident.String(),
		"--kv-bytes-per-token", strconv.FormatInt(int64(s.KVPerToken), 10),
		"--block-tokens", strconv.Itoa(s.BlockTokens),
		"--max-batched-tokens", strconv.Itoa(s.BatchedTokens),
	}
}
