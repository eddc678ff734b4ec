package emulator

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/size"
)

// slack is what the Go runtime may move on its own while a test measures; with
// the race detector that is a lot.
const slack = 12 * size.MiB

func rss(t *testing.T) size.Bytes {
	t.Helper()
	n, err := memory.RSS()
	if err != nil {
		t.Fatal(err)
	}
	return size.Bytes(n)
}

func near(got, want size.Bytes) bool { return got >= want-slack && got <= want+slack }

func TestKVCacheIsRealMemoryThatRisesAndFalls(t *testing.T) {
	cfg := frozen()
	s := startServer(t, cfg)
	before := rss(t)
	ctx, leave := context.WithCancel(t.Context())
	for waiting := range 3 {
		post(t, ctx, s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":true}`, prompt(170)))
		// 170 tokens are 6 blocks. The first request's step takes an hour, so that
		// the others wait.
		eventually(t, s, "one prompt in memory", func(st State) bool {
			return st.Held == 12*size.MiB && st.Running == 1 && st.Waiting == waiting
		})
	}
	eventually(t, s, "its pages mapped", func(State) bool { return s.pool.Mapped() == 12<<20 })
	if got := rss(t) - before; !near(got, 12*size.MiB) {
		t.Fatalf("rss rose by %v, want 12MiB", got)
	}
	leave()
	eventually(t, s, "all aborted", func(st State) bool { return st.Held == 0 && st.Running == 0 && st.Waiting == 0 })
	if got := rss(t) - before; !near(got, 0) {
		t.Fatalf("rss after the abort: %v more than before, want none", got)
	}
}

func TestResidentMemoryIsRealAndGivenBackAtTheEnd(t *testing.T) {
	before := rss(t)
	cfg := quick()
	cfg.Resident = 65*size.MiB + 1
	s := startServer(t, cfg)
	if got := s.State().Resident; got != 66*size.MiB {
		t.Fatalf("resident: got %v, want whole pages, 66MiB", got)
	}
	if got := rss(t) - before; !near(got, 66*size.MiB) {
		t.Fatalf("rss rose by %v, want 66MiB", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := rss(t) - before; !near(got, 0) {
		t.Fatalf("rss after close: %v more than before, want none", got)
	}
}

func TestMemoryIsFreeWhenTheClientSeesTheEnd(t *testing.T) {
	s := startServer(t, quick())
	for range 20 {
		streamed(t, s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":true,"max_tokens":3}`, prompt(100)))
		if got := s.State().Held; got != 0 {
			t.Fatalf("held after the last event: got %v, want 0B", got)
		}
	}
}

func TestSmallBlocksSharePagesAndLargeOnesTakeSeveral(t *testing.T) {
	for _, tc := range []struct {
		perToken size.Bytes
		held     size.Bytes // of 70 tokens in blocks of 32: three blocks
	}{{12 * size.KiB, 2 * size.MiB}, {64 * size.KiB, 6 * size.MiB}, {100 * size.KiB, 12 * size.MiB}, {128 * size.KiB, 12 * size.MiB}} {
		cfg := frozen()
		cfg.KVBytesPerToken = tc.perToken
		s := startServer(t, cfg)
		ctx, leave := context.WithCancel(t.Context())
		post(t, ctx, s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":true}`, prompt(70)))
		eventually(t, s, fmt.Sprintf("%v a token", tc.perToken), func(st State) bool { return st.Held == tc.held })
		leave()
		eventually(t, s, "aborted", func(st State) bool { return st.Held == 0 })
	}
}

func TestClientThatLeavesIsAbortedAtOnce(t *testing.T) {
	for name, stream := range map[string]string{"streaming": "true", "not streaming": "false"} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, frozen())
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				resp, err := try(ctx, s, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":%s}`, prompt(100), stream))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			eventually(t, s, "running", func(st State) bool { return st.Running == 1 && st.Held == 8*size.MiB })
			leave()
			<-left
			eventually(t, s, "aborted", func(st State) bool { return st.Running == 0 && st.Held == 0 && st.stats.Aborted == 1 })
		})
	}
}
