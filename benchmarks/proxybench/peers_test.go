package proxybench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// smallPeers is a run that shows nothing but that it works.
func smallPeers(t *testing.T) PeersConfig {
	cfg := DefaultPeersConfig()
	cfg.Rate, cfg.Slice, cfg.Rounds, cfg.Connections, cfg.Capacity = 50, 100*time.Millisecond, 1, 2, 100*time.Millisecond
	cfg.Events, cfg.Gap = 2, 100*time.Microsecond
	cfg.Out = filepath.Join(t.TempDir(), "peers.json")
	return cfg
}

func TestPeersThatCannotBeInstalledAreNamedAndTheRestIsMeasured(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("LULL_CACHE", t.TempDir())
	cfg := smallPeers(t)
	var out bytes.Buffer
	if err := RunPeers(t.Context(), &out, cfg); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cfg.Out)
	if err != nil {
		t.Fatal(err)
	}
	var r peersResult
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Peers) != 6 || len(r.Runs) != 2 || r.Machine.Cores == 0 || r.Command != "make bench-peers" {
		t.Fatalf("got %+v, want six peers, two runs, machine and command", r)
	}
	for _, p := range r.Peers {
		if !strings.Contains(p.Missing, "install "+p.Name) || !strings.Contains(out.String(), "missing  "+p.Name+": ") {
			t.Errorf("%s: got %q, want it named with the reason", p.Name, p.Missing)
		}
	}
	for _, run := range r.Runs {
		if !slices.Equal(run.Order, []string{armDirect, armAgain, armBare, armLull}) {
			t.Errorf("%s: got arms %v", run.Name, run.Order)
		}
		for name, a := range run.Arms {
			if a.First.N != a.Sent || a.Later.N != a.Sent || a.Failed != 0 || a.Sent == 0 || a.Reached <= 0 {
				// How many are sent in time is the machine's affair.
				t.Errorf("%s: %s: got %+v, want every request that was sent answered", run.Name, name, a)
			}
		}
	}
	if len(r.Bars) != 3 || r.Capacity[armLull].Reached <= 0 {
		t.Errorf("got bars %v, capacity %v", r.Bars, r.Capacity)
	}
}

func TestPeersConfigErrorsNameKeyValueAndRule(t *testing.T) {
	for want, breakIt := range map[string]func(*PeersConfig){
		"bench peers: rate: got 0, want 1 to 100000 requests a second": func(c *PeersConfig) { c.Rate = 0 },
		"bench peers: slice: got 1ms, want 100ms to 1m":                func(c *PeersConfig) { c.Slice = time.Millisecond },
		"bench peers: rounds: got 0, want at least 1":                  func(c *PeersConfig) { c.Rounds = 0 },
		"bench peers: connections: got 0, want 1 to 1024":              func(c *PeersConfig) { c.Connections = 0 },
		"bench peers: capacity: got 1h0m0s, want 100ms to 1m":          func(c *PeersConfig) { c.Capacity = time.Hour },
		"bench peers: events: got 1, want at least 2":                  func(c *PeersConfig) { c.Events = 1 },
		"bench peers: gap: got 0s, want more than 0":                   func(c *PeersConfig) { c.Gap = 0 },
		"bench peers: prompt: got 4 bytes, want at least 5":            func(c *PeersConfig) { c.Prompt = 4 },
		`bench peers: peers: got "x", want some of nginx, haproxy, caddy, litellm, vllm-router, portkey`: func(c *PeersConfig) {
			c.Peers = []string{"x"}
		},
	} {
		c := DefaultPeersConfig()
		breakIt(&c)
		if err := RunPeers(t.Context(), &bytes.Buffer{}, c); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestArrivalsAreTheSameForEveryArmAndHaveTheRate(t *testing.T) {
	due := arrivals(7, 1000, 10*time.Second)
	if !slices.Equal(due, arrivals(7, 1000, 10*time.Second)) || slices.Equal(due, arrivals(8, 1000, 10*time.Second)) {
		t.Error("got times that do not depend on the seed alone")
	}
	// 10,000 expected, standard deviation 100.
	if n := len(due); n < 9500 || n > 10500 || !slices.IsSorted(due) || due[n-1] >= 10*time.Second {
		t.Errorf("got %d arrivals, want about 10000 in order within 10s", n)
	}
}

// serving is an upstream of this process, in front of which handler may answer.
func serving(t *testing.T, handler func(http.ResponseWriter, *http.Request) bool) target {
	t.Helper()
	u := upstream{events: 2, gap: time.Microsecond}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !handler(w, r) {
			u.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return target{arm: "x", addr: s.Listener.Addr().String(), prompt: 5, events: 2, headers: []string{"X-Seen: yes"}}
}

func TestRequestsThatFailAreCountedWithTheFirstReason(t *testing.T) {
	n := 0
	to := serving(t, func(w http.ResponseWriter, r *http.Request) bool {
		n++ // one connection: one request at a time
		if n == 1 || n == 4 {
			return false
		}
		http.Error(w, "overloaded", http.StatusServiceUnavailable)
		return true
	})
	got, err := slice(t.Context(), to, 1, make([]time.Duration, 4), time.Minute)
	if err != nil || got.sent != 4 || got.failed != 3 || len(got.first) != 1 || len(got.later) != 1 || got.unsent != 0 {
		t.Fatalf("got %+v, %v, want one of four answered", got, err)
	}
	if got.fault != "bench proxy: x: got status 503, want 200: overloaded\n" {
		t.Errorf("got %q", got.fault)
	}
}

func TestARequestThatWaitedForAConnectionIsTimedFromWhenItWasDue(t *testing.T) {
	hold := make(chan struct{})
	n := 0
	to := serving(t, func(w http.ResponseWriter, r *http.Request) bool {
		if n++; n == 2 {
			time.AfterFunc(50*time.Millisecond, func() { close(hold) })
			<-hold
		}
		return false
	})
	got, err := slice(t.Context(), to, 1, []time.Duration{0, 0, 0}, time.Minute)
	if err != nil || got.queued != 3 || len(got.first) != 3 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, d := range got.first {
		if d < 50*time.Millisecond {
			t.Errorf("got %v, want the wait of 50ms in it", d)
		}
	}
}

func TestASliceEndsThoughTheArmIsTooSlow(t *testing.T) {
	to := serving(t, func(w http.ResponseWriter, r *http.Request) bool {
		<-time.After(20 * time.Millisecond)
		return false
	})
	got, err := slice(t.Context(), to, 1, make([]time.Duration, 1000), 50*time.Millisecond)
	if err != nil || got.unsent < 900 || got.sent+got.unsent != 1000 {
		t.Errorf("got %+v, %v, want most never sent", got, err)
	}
}

func TestAnAnswerThatLacksEventsIsAFault(t *testing.T) {
	to := serving(t, func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = w.Write([]byte("data: {\"content\":\"sent_ns=1\"}\n\ndata: {\"finish_reason\":\"stop\"}\n\ndata: [DONE]\n\n"))
		return true
	})
	want := "bench proxy: x: got 1 of the upstream's events, want 2"
	if _, err := slice(t.Context(), to, 1, nil, time.Second); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestHeadersOfAPeerAreSent(t *testing.T) {
	seen := make(chan string, 1)
	to := serving(t, func(w http.ResponseWriter, r *http.Request) bool { seen <- r.Header.Get("X-Seen"); return false })
	if _, err := slice(t.Context(), to, 1, nil, time.Second); err != nil || <-seen != "yes" {
		t.Errorf("got %v, want the header", err)
	}
}

func TestAnArmThatIsGoneLosesItsSlices(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := contender{target: target{arm: "gone", addr: l.Addr().String(), events: 2}}
	l.Close()
	direct := contender{target: serving(t, func(http.ResponseWriter, *http.Request) bool { return false })}
	direct.arm = armDirect
	cfg := smallPeers(t)
	r := newPeersResult(cfg, nil)
	arms := []contender{direct, gone}
	var out bytes.Buffer
	if err := r.run(t.Context(), &out, cfg, "set rate", 50, arms); err != nil {
		t.Fatal(err)
	}
	if a := r.Runs[0].Arms["gone"]; a.Failed != a.Sent || a.Sent == 0 || !strings.Contains(a.Fault, "bench proxy: dial gone: ") {
		t.Errorf("got %+v, want all failed", a)
	}
	_, _, err = r.race(t.Context(), &out, cfg, arms)
	if err == nil || !strings.Contains(err.Error(), "bench peers: got no proxy that carries 2 requests a second") || r.Capacity["gone"].Failed == "" {
		t.Errorf("got %v, %v, want no rate", err, r.Capacity)
	}
	if !strings.Contains(out.String(), "bench peers: gone left out of the second run: ") || !strings.HasPrefix(r.Capacity["gone"].String(), "not the second run: ") {
		t.Errorf("got %s", &out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.run(ctx, &out, cfg, "x", 50, arms); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}
