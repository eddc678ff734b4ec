package emulator

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

func putBound(t *testing.T, s *Server, epoch uint64, bytes size.Bytes) (int, boundReply) {
	t.Helper()
	status, body := call(t, s, "PUT", "/lull/kv_bound", fmt.Sprintf(`{"epoch":%d,"bytes":%d}`, epoch, bytes))
	var r struct {
		Epoch uint64
		Bound int64 `json:"bound_bytes"`
		Held  int64 `json:"held_bytes"`
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return status, boundReply{Epoch: r.Epoch, Bound: size.Bytes(r.Bound), Held: size.Bytes(r.Held)}
}

func TestBoundFollowsItsEpochs(t *testing.T) {
	s := startServer(t, quick())
	const session = uint64(3) << 32
	for _, step := range []struct {
		epoch  uint64
		bytes  size.Bytes
		status int
		want   boundReply
	}{
		{session | 1, 20 * size.MiB, 200, boundReply{Epoch: session | 1, Bound: 20 * size.MiB}},
		{session | 2, 33 * size.MiB, 200, boundReply{Epoch: session | 2, Bound: 32 * size.MiB}}, // whole pages
		{session | 1, 8 * size.MiB, 409, boundReply{Epoch: session | 2, Bound: 32 * size.MiB}},
		{session | 2, 10 * size.MiB, 200, boundReply{Epoch: session | 2, Bound: 10 * size.MiB}}, // repeated
		{session << 1, 1 * size.GiB, 200, boundReply{Epoch: session << 1, Bound: 64 * size.MiB}},
		{session | 9, 0, 409, boundReply{Epoch: session << 1, Bound: 64 * size.MiB}},
	} {
		if status, got := putBound(t, s, step.epoch, step.bytes); status != step.status || got != step.want {
			t.Fatalf("epoch %d, %v: got %d %+v, want %d %+v", step.epoch, step.bytes, status, got, step.status, step.want)
		}
	}
	if st := s.State(); st.BoundEpoch != session<<1 || st.Bound != 64*size.MiB {
		t.Fatalf("state: %+v", st)
	}
}

func TestOlderEpochIsToldWhy(t *testing.T) {
	s := startServer(t, quick())
	putBound(t, s, 5, 0)
	status, body := call(t, s, "PUT", "/lull/kv_bound", `{"epoch":4,"bytes":0}`)
	if want := "epoch 4 is older than 5, which is in force; the bound stays"; status != 409 || parse(t, body).Error.Message != want {
		t.Fatalf("got %d %s, want 409 %q", status, body, want)
	}
}

func TestMalformedBoundIsRefused(t *testing.T) {
	s := startServer(t, quick())
	for body, want := range map[string]string{
		`{"epoch":1`:              "the body is no valid bound: ",
		`{"epoch":-1,"bytes":1}`:  "the body is no valid bound: ",
		`{"epoch":1}`:             "want epoch and bytes, both whole numbers of at least 0",
		`{"bytes":1}`:             "want epoch and bytes, both whole numbers of at least 0",
		`{"epoch":1,"bytes":-1}`:  "want epoch and bytes, both whole numbers of at least 0",
		`{"epoch":1,"bytes":1.5}`: "the body is no valid bound: ",
	} {
		if status, got := call(t, s, "PUT", "/lull/kv_bound", body); status != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: got %d %s, want 400 %q", body, status, got, want)
		}
	}
}

func TestWaitingRequestGoesWhenTheBoundRises(t *testing.T) {
	cfg := quick()
	cfg.Bound = 0
	s := startServer(t, cfg)
	resp := post(t, t.Context(), s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":true,"max_tokens":2}`, prompt(100)))
	eventually(t, s, "waiting", func(st State) bool { return st.Waiting == 1 && st.Short == 8*size.MiB })
	if _, got := putBound(t, s, 1, 8*size.MiB); got.Bound != 8*size.MiB {
		t.Fatalf("bound: got %+v", got)
	}
	if data, err := events(resp.Body); err != nil || len(data) != 3 {
		t.Fatalf("got %q and %v, want two tokens and [DONE]", data, err)
	}
}

func TestLoweredBoundKeepsWhatIsHeldAndAdmitsNobody(t *testing.T) {
	s := startServer(t, frozen())
	post(t, t.Context(), s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"stream":true}`, prompt(100)))
	eventually(t, s, "running", func(st State) bool { return st.Running == 1 })
	if _, got := putBound(t, s, 1, 4*size.MiB); got.Bound != 4*size.MiB || got.Held != 8*size.MiB {
		t.Fatalf("got %+v, want a bound of 4MiB with 8MiB held", got)
	}
}

func TestShortOfMemoryRequestsArePreemptedAndStillComplete(t *testing.T) {
	cfg := quick()
	cfg.Bound = 0
	s := startServer(t, cfg)
	body := fmt.Sprintf(`{"prompt":%q,"stream":true,"max_tokens":60,"ignore_eos":true}`, prompt(30))
	first := post(t, t.Context(), s, "/v1/completions", body)
	second := post(t, t.Context(), s, "/v1/completions", body)
	eventually(t, s, "both wait", func(st State) bool { return st.Waiting == 2 })
	putBound(t, s, 1, 6*size.MiB)
	for _, resp := range []struct {
		Body interface{ Read([]byte) (int, error) }
	}{{first.Body}, {second.Body}} {
		if data, err := events(resp.Body); err != nil || len(data) != 61 || !strings.Contains(data[59], "w60 ") {
			t.Fatalf("got %d events and %v, want 61", len(data), err)
		}
	}
	if got := s.State().Preemptions; got == 0 {
		t.Fatal("nobody was preempted: the test shows nothing")
	}
}
