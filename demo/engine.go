package demo

import (
	"context"
	"strconv"

	"github.com/lull-project/lull/size"
)

// servedModel is the name that requests ask for.
const servedModel = "demo"

// engineReady is the ready line of the LLM server.
type engineReady struct {
	Listening string     `json:"listening"`
	PID       int        `json:"pid"`
	Baseline  size.Bytes `json:"baseline_bytes"`
	Resident  size.Bytes `json:"resident_bytes"`
}

// url is the server's base URL.
func (e engineReady) url() string { return baseURL(e.Listening) }

// startEngine starts the LLM server of a phase and waits until it serves. It is
// the seam for other servers: they give the same process and ready line.
//
// Alone on the device it is a stock server: its pool is allocated at the start
// and stays, so that it is compared at its best.
func (r *runner) startEngine(ctx context.Context, logs string, alone bool) (*proc, engineReady, error) {
	args := emulateArgs(r.sizing)
	if alone {
		args = append(args, "--static-pool")
	}
	p, err := startProc(procSpec{
		Name: "engine", Path: r.opts.Exe, Args: args,
		Cores: r.place.Rest, LogDir: logs, Ready: true,
	})
	if err != nil {
		return nil, engineReady{}, err
	}
	var ready engineReady
	if err := p.awaitReady(ctx, startLimit, &ready); err != nil {
		p.stop(stopGrace)
		return nil, engineReady{}, err
	}
	return p, ready, nil
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
