package proxy

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

func leastLoad(c *Config, _ *Gate) { c.Balance = BalanceLeastLoad }

// waiting is an upstream whose requests wait until it is told to answer one.
type waiting struct {
	*httptest.Server
	came, answer chan struct{}
}

func newWaiting(t *testing.T) *waiting {
	w := &waiting{came: make(chan struct{}, 100), answer: make(chan struct{}, 100)}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.came <- struct{}{}
		select {
		case <-w.answer:
			_, _ = io.WriteString(out, "{}")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(w.Close)
	return w
}

// TestLeastLoadTakesTheUpstreamWithTheFewestOpenRequests: what is interpreted and what
// passes count alike.
func TestLeastLoadTakesTheUpstreamWithTheFewestOpenRequests(t *testing.T) {
	a, b, c := newWaiting(t), newWaiting(t), newWaiting(t)
	all := []*waiting{a, b, c}
	r := newRigTo(t, "", failover(a.URL, b.URL, c.URL), leastLoad)
	ended := make(chan struct{}, 100)
	var clients sync.WaitGroup
	defer clients.Wait()
	ask := func(path string) {
		clients.Go(func() {
			res, err := r.client.Post(r.server.URL+path, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
			ended <- struct{}{}
		})
	}
	goesTo := func(to *waiting, path string) {
		t.Helper()
		ask(path)
		select {
		case <-to.came:
		case <-time.After(wait):
			t.Fatalf("%s: did not go to the upstream with the fewest open requests", path)
		}
	}
	for _, path := range []string{chatPath, "/other", chatPath} {
		for _, to := range all {
			goesTo(to, path)
		}
	}
	for range 2 {
		b.answer <- struct{}{}
		<-ended
	}
	r.settlesAt(t, 3, 1, 3)
	goesTo(b, chatPath)
	goesTo(b, "/other")
	goesTo(a, chatPath) // of several the first
	for _, w := range all {
		for range 10 {
			w.answer <- struct{}{}
		}
	}
	clients.Wait()
	r.settlesAt(t, 0, 0, 0)
}

// settlesAt waits until the upstreams have so many open requests: a client may have
// its answer before the proxy has counted it out.
func (r *rig) settlesAt(t *testing.T, want ...int64) {
	t.Helper()
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) { // polls a counter
		same, got := true, []int64{}
		for i := range want {
			got = append(got, r.proxy.upstreams[i].health.open.Load())
			same = same && got[i] == want[i]
		}
		if same {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("open requests: got %v, want %v", got, want)
		}
	}
}

func TestEveryEndingIsCountedOutOfItsUpstreamsOpenRequests(t *testing.T) {
	broken := rawServer(t, func(_ int, c net.Conn) { _, _, _ = readRequest(bufio.NewReader(c)) })
	good := saying(t, "good")
	bothPaths(t, func(t *testing.T, path string) {
		for name, urls := range map[string][]string{
			"answered": {good.URL, good.URL + "/"}, "sent elsewhere": {deadURL(t), good.URL},
			"nowhere to go": {deadURL(t), deadURL(t)}, "broken off": {broken, good.URL},
		} {
			r := newRigTo(t, "", failover(urls...), leastLoad)
			for range 3 {
				req, _ := http.NewRequest(http.MethodPost, r.server.URL+path, http.NoBody)
				res, err := r.client.Do(req)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				text(t, res)
				res.Body.Close()
			}
			r.settlesAt(t, 0, 0)
		}
	})
}

// TestPickIsTheLeastOfThoseThatAreNotDown compares with a search that is plain to see.
func TestPickIsTheLeastOfThoseThatAreNotDown(t *testing.T) {
	src := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		cfg := DefaultConfig()
		cfg.Upstreams, cfg.Failover = nil, true
		for i := range 1 + src.IntN(5) {
			cfg.Upstreams = append(cfg.Upstreams, Upstream{Name: string(rune('a' + i)), URL: "http://127.0.0.1:" + string(rune('1'+i))})
		}
		cfg.Balance = []string{"", BalanceFirst, BalanceLeastLoad}[src.IntN(3)]
		p := New(cfg, nil, nil)
		want := -1
		for i, u := range p.upstreams {
			u.health.down.Store(src.IntN(3) == 0)
			u.health.open.Store(src.Int64N(4))
			if u.health.down.Load() {
				continue
			}
			if want < 0 || cfg.Balance == BalanceLeastLoad && u.health.open.Load() < p.upstreams[want].health.open.Load() {
				want = i
			}
		}
		if got := p.pick(); got != max(want, 0) {
			t.Fatalf("%q: got %d, want %d", cfg.Balance, got, max(want, 0))
		}
	}
}

func TestBalanceIsRefusedWhereItIsNoneOrHasNoChoice(t *testing.T) {
	for balance, want := range map[string]string{
		"random":         `proxy.balance: got "random", want first or least_load`,
		BalanceLeastLoad: "proxy.balance: got least_load without proxy.failover, want failover: true, which says that all engines serve the same models",
	} {
		cfg := DefaultConfig()
		cfg.Balance = balance
		if err := cfg.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
