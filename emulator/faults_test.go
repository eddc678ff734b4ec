package emulator

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

const fourTokens = `{"prompt":"a","stream":true,"max_tokens":4,"ignore_eos":true}`

func TestErrorFaultIsAnEventOfTheStreamAndEndsIt(t *testing.T) {
	s := startServer(t, quick())
	data, err := events(post(t, t.Context(), s, "/v1/completions", fourTokens, "X-Lull-Fault", "error-after=2").Body)
	if err != nil || len(data) != 4 || data[3] != "[DONE]" {
		t.Fatalf("got %q and %v, want two tokens, an error and [DONE]", data, err)
	}
	if e := parse(t, data[2]).Error; e == nil || e.Code != 500 || e.Message != "fault: the emulated engine broke down" {
		t.Fatalf("error event: %s", data[2])
	}
	eventually(t, s, "aborted", func(st State) bool { return st.Running == 0 })
}

func TestErrorFaultIsStatus500WithoutStream(t *testing.T) {
	cfg := quick()
	cfg.Faults = "error-after=0"
	s := startServer(t, cfg)
	status, body := call(t, s, "POST", "/v1/completions", `{"prompt":"a","max_tokens":2}`)
	if e := parse(t, body).Error; status != 500 || e == nil || e.Type != "InternalServerError" {
		t.Fatalf("got %d %s", status, body)
	}
}

func TestResetFaultBreaksTheConnection(t *testing.T) {
	s := startServer(t, quick())
	for _, stream := range []string{"true", "false"} {
		body := strings.Replace(fourTokens, "true", stream, 1)
		resp, err := try(t.Context(), s, "POST", "/v1/completions", body, "X-Lull-Fault", "reset-after=2")
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("stream %s: got %v, want a reset", stream, err)
		}
	}
}

func TestStallFaultSendsNoMoreUntilTheClientLeaves(t *testing.T) {
	s := startServer(t, quick())
	ctx, leave := context.WithCancel(t.Context())
	resp := post(t, ctx, s, "/v1/completions", fourTokens, "X-Lull-Fault", "stall-after=2")
	eventually(t, s, "the engine is through", func(st State) bool { return st.stats.FinishedLength == 1 })
	buf := make([]byte, 1<<16)
	n, _ := io.ReadAtLeast(resp.Body, buf, 2*len(`data: {"id":"cmpl-0000000100000001"`))
	for strings.Count(string(buf[:n]), "data: ") < 2 {
		m, err := resp.Body.Read(buf[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	leave()
	rest, err := io.ReadAll(resp.Body)
	if got := string(buf[:n]) + string(rest); strings.Count(got, "data: ") != 2 || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %q and %v, want two events and then nothing", got, err)
	}
}

func TestSplitWritesChangeNoByte(t *testing.T) {
	s := startServer(t, quick())
	for _, path := range []string{"/v1/completions"} {
		whole := streamed(t, s, path, fourTokens)
		resp := post(t, t.Context(), s, path, fourTokens, "X-Lull-Fault", "split-writes=7")
		data, err := events(resp.Body)
		if err != nil || len(data) != len(whole)+1 {
			t.Fatalf("got %q and %v", data, err)
		}
		for i := range whole {
			if parse(t, data[i]).Choices[0].Text != parse(t, whole[i]).Choices[0].Text {
				t.Fatalf("event %d: got %s, want %s", i, data[i], whole[i])
			}
		}
	}
}

func TestLatencyAndSlowCloseTakeTheirTime(t *testing.T) {
	s := startServer(t, quick())
	began := time.Now()
	resp := post(t, t.Context(), s, "/v1/completions", fourTokens, "X-Lull-Fault", "latency=30ms,slow-close=40ms")
	if got := time.Since(began); got < 30*time.Millisecond {
		t.Fatalf("headers after %v, want at least 30ms", got)
	}
	if data, err := events(resp.Body); err != nil || len(data) != 5 || time.Since(began) < 70*time.Millisecond {
		t.Fatalf("got %q, %v after %v, want five events and an end after 70ms", data, err, time.Since(began))
	}
}

func TestUnknownFaultInAHeaderIsRefused(t *testing.T) {
	s := startServer(t, quick())
	status, body := call(t, s, "POST", "/v1/completions", fourTokens, "X-Lull-Fault", "fire=1")
	if status != 400 || !strings.Contains(body, `fault \"fire=1\": not known`) {
		t.Fatalf("got %d %s", status, body)
	}
}
