package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// warmStreams is how many streams the warm-up serves at once: about as many as a
// busy emulator does, so that stacks and buffers have their size before the
// baseline is read.
const warmStreams = 48

// warmBaseline serves a few streams with no memory to speak of and returns what
// the process holds then: the bytes that are not the emulated device's.
func warmBaseline(ctx context.Context, cfg Config) (size.Bytes, error) {
	if err := warmUp(ctx, cfg); err != nil {
		return 0, fmt.Errorf("emulate: warm up: %w", err)
	}
	runtime.GC()
	rss, err := memory.RSS()
	if err != nil {
		return 0, fmt.Errorf("emulate: measure the baseline: %w", err)
	}
	return size.Bytes(rss), nil
}

func warmUp(ctx context.Context, cfg Config) error {
	cfg.Coefficients = &model.Coefficients{Decode: model.Curve{A: 1}, Prefill: model.Curve{A: 1}}
	cfg.TimeScale, cfg.Faults, cfg.Resident, cfg.StaticPool = 1, "", 0, false
	cfg.KVBytesPerToken, cfg.BlockTokens, cfg.MaxModelLen = 1, 1024, 1024
	cfg.MaxSeqs, cfg.MaxBatchedTokens = warmStreams, 4*warmStreams
	cfg.Pool, cfg.Bound = memory.PageBytes, WholePool
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := start(ctx, cfg, listener, 0)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	errs := make([]error, warmStreams)
	var clients sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: warmStreams}
	for i := range warmStreams {
		clients.Go(func() { errs[i] = warmStream(ctx, transport, s.Addr()) })
	}
	clients.Wait()
	transport.CloseIdleConnections()
	return errors.Join(errors.Join(errs...), s.Close())
}

func warmStream(ctx context.Context, transport http.RoundTripper, addr string) error {
	body := []byte(`{"stream":true,"max_tokens":20,"ignore_eos":true,"messages":[{"content":"a b c d"}]}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
