package engine

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// sleeper is a vLLM with its sleep mode, as vllm 0.32's v1/engine/core.py and its
// routers have it: release needs a pause and no request, and waking resumes.
type sleeper struct {
	*httptest.Server
	mu                sync.Mutex
	paused, released  bool
	offloaded         bool
	running           int
	asked             []string
	fail              map[string]int // path to status
	arrive            func(path string)
	stuck             string // status of wake_up in place of awake
	silent, unmetered bool   // agrees and does nothing; has no gauge of sleep
	before            func(path string)
	hang              func(path string, gaveUp <-chan struct{})
}

func newSleeper(t *testing.T) *sleeper {
	s := &sleeper{fail: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *sleeper) serve(w http.ResponseWriter, r *http.Request) {
	if s.before != nil {
		s.before(r.URL.Path)
	}
	if s.hang != nil {
		s.hang(r.URL.Path, r.Context().Done())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		s.asked = append(s.asked, r.URL.RequestURI())
	}
	if s.arrive != nil {
		s.arrive(r.URL.Path)
	}
	if code := s.fail[r.URL.Path]; code != 0 {
		http.Error(w, fmt.Sprintf(`{"error":"failed %s"}`, r.URL.Path), code)
		return
	}
	switch r.URL.Path {
	case "/metrics":
		s.metrics(w)
	case "/v1/models":
		fmt.Fprint(w, models)
	case "/is_paused":
		fmt.Fprintf(w, `{"is_paused":%t}`, s.paused)
	case "/pause":
		s.paused = true
		fmt.Fprint(w, `{"status":"paused"}`)
	case "/resume":
		s.paused = false
		fmt.Fprint(w, `{"status":"resumed"}`)
	case "/release_kv_cache_memory":
		if !s.paused || s.running > 0 {
			http.Error(w, `{"error":"release_kv_cache_memory() requires a completed pause first"}`, 500)
			return
		}
		s.released = !s.silent
		fmt.Fprint(w, `{"status":"kv_cache_released"}`)
	case "/wake_up":
		if s.stuck != "" {
			fmt.Fprintf(w, `{"status":%q,"tags":["kv_cache"]}`, s.stuck)
			return
		}
		s.paused, s.released = false, false
		fmt.Fprint(w, `{"status":"awake","tags":["kv_cache"]}`)
	default:
		http.NotFound(w, r)
	}
}

func (s *sleeper) metrics(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintf(w, "vllm:kv_cache_usage_perc 0\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\n", s.running)
	fmt.Fprint(w, `vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",kv_cache_memory_bytes="None",engine="0"} 1`+"\n")
	if s.unmetered {
		return
	}
	awake, offloaded := 1, 0
	if s.released {
		awake = 0
	}
	if s.offloaded {
		awake, offloaded = 0, 1
	}
	fmt.Fprintf(w, "vllm:engine_sleep_state{sleep_state=\"awake\"} %d\nvllm:engine_sleep_state{sleep_state=\"weights_offloaded\"} %d\nvllm:engine_sleep_state{sleep_state=\"discard_all\"} 0\n", awake, offloaded)
}

// posted is what was asked for, and forgets it.
func (s *sleeper) posted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.asked
	s.asked = nil
	return got
}

func (s *sleeper) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

const sleeperPool = 16000 * size.KiB

func openSleeper(t *testing.T, s *sleeper) Bounder {
	t.Helper()
	e, ok := open(t, Config{Kind: KindVLLMSleep, URL: s.URL, BytesPerToken: size.KiB}).(Bounder)
	if !ok {
		t.Fatal("got no Bounder, want one")
	}
	return e
}

func TestVLLMSleepPoolGoesWholeAndComesBack(t *testing.T) {
	s := newSleeper(t)
	e := openSleeper(t, s)
	if c := e.Capabilities(); !c.Whole || !c.Bound || c.Static || c.Kind != KindVLLMSleep {
		t.Errorf("capabilities: got %+v, want a bound of all or nothing", c)
	}
	got, err := e.Observe(t.Context())
	if err != nil || got.Held != sleeperPool || got.Bound != sleeperPool || got.Evictable != sleeperPool || got.Note != "" {
		t.Fatalf("awake: got %+v, %v, want the whole pool held and evictable", got, err)
	}
	got, err = e.SetBound(t.Context(), 5, 0)
	if err != nil || got.Held != 0 || got.Bound != 0 || got.BoundEpoch != 5 || got.Pool != sleeperPool {
		t.Fatalf("after the bound of 0: got %+v, %v, want nothing held by epoch 5", got, err)
	}
	if want := []string{"/pause?mode=keep", "/release_kv_cache_memory"}; !slices.Equal(s.posted(), want) {
		t.Errorf("want %v posted", want)
	}
	got, err = e.SetBound(t.Context(), 6, size.MiB)
	if err != nil || got.Held != sleeperPool || got.Bound != sleeperPool || got.BoundEpoch != 6 {
		t.Fatalf("after any other bound: got %+v, %v, want the whole pool by epoch 6", got, err)
	}
	if want := []string{"/wake_up?tags=kv_cache"}; !slices.Equal(s.posted(), want) {
		t.Errorf("want %v posted", want)
	}
	if _, err = e.SetBound(t.Context(), 4, 0); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("older epoch: got %v, want ErrStaleEpoch", err)
	}
	if got := s.posted(); got != nil {
		t.Errorf("a stale order posted %v, want nothing", got)
	}
}

func TestVLLMSleepOrdersTwiceAreOrdersOnce(t *testing.T) {
	s := newSleeper(t)
	e := openSleeper(t, s)
	for epoch, b := range []size.Bytes{0, 0, sleeperPool, sleeperPool} {
		if _, err := e.SetBound(t.Context(), uint64(epoch+1), b); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.posted(), []string{"/pause?mode=keep", "/release_kv_cache_memory", "/wake_up?tags=kv_cache"}; !slices.Equal(got, want) {
		t.Errorf("got %v posted, want %v", got, want)
	}
}

func TestVLLMSleepRequestThatComesMeanwhileIsServedAndThePoolStays(t *testing.T) {
	s := newSleeper(t)
	later := time.Duration(0)
	opened, err := Open(t.Context(), Config{Name: "main", Kind: KindVLLMSleep, URL: s.URL, BytesPerToken: size.KiB, Now: func() time.Time { return testTime.Add(later) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Close(opened) })
	e := opened.(Bounder)
	s.arrive = func(path string) {
		if path == "/pause" {
			s.running = 1
		}
	}
	_, err = e.SetBound(t.Context(), 1, 0)
	if err == nil || !strings.Contains(err.Error(), "its pool was not released, the server goes on with it") || !strings.Contains(err.Error(), "requires a completed pause first") {
		t.Fatalf("got %v, want the server's reason and that it goes on", err)
	}
	if s.paused || s.released {
		t.Errorf("got paused %t, released %t, want neither", s.paused, s.released)
	}
	s.posted()
	if _, err = e.SetBound(t.Context(), 2, 0); err == nil || !strings.Contains(err.Error(), "not tried again within 30s: its pool was not released") {
		t.Errorf("right after: got %v, want that it rests", err)
	}
	if got := s.posted(); got != nil {
		t.Errorf("got %v posted while it rests, want nothing", got)
	}
	later = poolRests
	if _, err = e.SetBound(t.Context(), 2, 0); err == nil || !strings.Contains(err.Error(), "got 1 running and 0 waiting requests, want none") {
		t.Errorf("with a request there: got %v, want that it was not even paused", err)
	}
	if got := s.posted(); got != nil {
		t.Errorf("got %v posted beside a request, want nothing", got)
	}
}

func TestVLLMSleepUndoesAPauseAsSoonAsItCan(t *testing.T) {
	s := newSleeper(t)
	e := openSleeper(t, s)
	s.set(func() { s.fail["/release_kv_cache_memory"], s.fail["/wake_up"] = 500, 500 })
	_, err := e.SetBound(t.Context(), 1, 0)
	if err == nil || !strings.Contains(err.Error(), "the pause was not undone") || !strings.Contains(err.Error(), "tried again at each reading") {
		t.Fatalf("got %v, want that it is paused still", err)
	}
	if _, err = e.Observe(t.Context()); err == nil || !strings.Contains(err.Error(), "it is paused by Lull and was not resumed") {
		t.Errorf("while it is paused: got %v, want an error that says so", err)
	}
	s.set(func() { delete(s.fail, "/wake_up") })
	if got, err := e.Observe(t.Context()); err != nil || got.Held != sleeperPool || s.paused {
		t.Errorf("got %+v, %v, paused %t, want it resumed with its pool", got, err, s.paused)
	}
}

func TestVLLMSleepSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*sleeper)
		bound  size.Bytes
		want   string
	}{
		"no route to release by":    {func(s *sleeper) { s.fail["/release_kv_cache_memory"], s.fail["/wake_up"] = 404, 404 }, 0, "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"},
		"no such routes":            {func(s *sleeper) { s.fail["/pause"] = 404 }, 0, "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"},
		"a device that cannot":      {func(s *sleeper) { s.fail["/release_kv_cache_memory"] = 500 }, 0, "its pool was not released, the server goes on with it"},
		"agrees and does nothing":   {func(s *sleeper) { s.silent = true }, 0, "it agreed, and then showed 15.6MiB held; its pool counts as held"},
		"somebody else's sleep":     {func(s *sleeper) { s.offloaded = true }, 0, "somebody else put it to sleep"},
		"no gauge of its sleep":     {func(s *sleeper) { s.unmetered = true }, 0, "got no vllm:engine_sleep_state, want it: start vLLM with --enable-sleep-mode, or name the kind vllm"},
		"does not wake":             {func(s *sleeper) { s.released, s.paused, s.stuck = true, true, "sleeping" }, size.MiB, `its pool did not come back: got status "sleeping", want awake`},
		"has no room to wake":       {func(s *sleeper) { s.released, s.paused, s.fail["/wake_up"] = true, true, 500 }, size.MiB, "its pool did not come back"},
		"cannot be read":            {func(s *sleeper) { s.fail["/metrics"] = 500 }, size.MiB, "got 500"},
		"cannot be read, to let go": {func(s *sleeper) { s.fail["/metrics"] = 500 }, 0, "got 500"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSleeper(t)
			c.change(s)
			_, err := openSleeper(t, s).SetBound(t.Context(), 3, c.bound)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "set bound epoch=3") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if s.paused && !s.released {
				t.Error("it stands still with its pool there; requests would wait for ever")
			}
		})
	}
}

func TestVLLMSleepFindsAnEarlierSidecarsRelease(t *testing.T) {
	s := newSleeper(t)
	s.paused, s.released = true, true
	e := openSleeper(t, s)
	got, err := e.Observe(t.Context())
	if err != nil || got.Held != 0 || got.Bound != 0 || got.BoundEpoch != 0 {
		t.Fatalf("got %+v, %v, want nothing held, by no order of this sidecar", got, err)
	}
	if got, err = e.SetBound(t.Context(), 1, sleeperPool); err != nil || got.Held != sleeperPool || s.paused {
		t.Errorf("got %+v, %v, want the pool back and the server going", got, err)
	}
}

func TestVLLMSleepLeavesSomebodyElsesPauseAndSaysSo(t *testing.T) {
	s := newSleeper(t)
	s.paused = true
	got, err := openSleeper(t, s).Observe(t.Context())
	if err != nil || !strings.Contains(got.Note, "requests wait until POST /resume") {
		t.Errorf("got %+v, %v, want a note of the pause", got, err)
	}
	if asked := s.posted(); asked != nil {
		t.Errorf("got %v posted, want nothing", asked)
	}
	s.set(func() { s.paused, s.offloaded = false, true })
	got, err = openSleeper(t, s).Observe(t.Context())
	if err != nil || got.Held != sleeperPool || !strings.Contains(got.Note, "put to sleep by somebody else") {
		t.Errorf("got %+v, %v, want its pool counted as held", got, err)
	}
}

func TestVLLMSleepServerThatRestartedHasForgottenItsOrder(t *testing.T) {
	s := newSleeper(t)
	e := openSleeper(t, s)
	if _, err := e.SetBound(t.Context(), 7, 0); err != nil {
		t.Fatal(err)
	}
	s.set(func() { s.paused, s.released = false, false })
	if got, err := e.Observe(t.Context()); err != nil || got.BoundEpoch != 0 || got.Bound != sleeperPool || got.Held != sleeperPool {
		t.Errorf("got %+v, %v, want the whole pool by nobody's order", got, err)
	}
	if got, err := e.SetBound(t.Context(), 8, 0); err != nil || got.Held != 0 || got.BoundEpoch != 8 {
		t.Errorf("ordered again: got %+v, %v, want nothing held by epoch 8", got, err)
	}
}

// TestVLLMSleepOrderMeetsAConnectionThatWasClosed: a server may close the connection
// of an answer of 500 without a word.
func TestVLLMSleepOrderMeetsAConnectionThatWasClosed(t *testing.T) {
	s := newSleeper(t)
	e := openSleeper(t, s)
	s.set(func() { s.fail["/release_kv_cache_memory"] = 500 })
	once := sync.Once{}
	s.before = func(path string) {
		if path == "/wake_up" {
			once.Do(func() { panic(http.ErrAbortHandler) })
		}
	}
	if _, err := e.SetBound(t.Context(), 1, 0); err == nil || strings.Contains(err.Error(), "not undone") || s.paused {
		t.Errorf("got %v, paused %t, want the pause undone by a second try", err, s.paused)
	}
}

// TestVLLMSleepReadingsDisturbNoReleaseUnderWay: a reading between the pause and the
// end of the release must not take the pause for one to undo.
func TestVLLMSleepReadingsDisturbNoReleaseUnderWay(t *testing.T) {
	for _, at := range []string{"/pause", "/release_kv_cache_memory"} {
		s := newSleeper(t)
		e := openSleeper(t, s)
		reached, on := make(chan struct{}), make(chan struct{})
		s.before = func(path string) {
			if path == at {
				close(reached)
				<-on
			}
		}
		done := make(chan error, 1)
		go func() { _, err := e.SetBound(t.Context(), 9, 0); done <- err }()
		<-reached
		if got, err := e.Observe(t.Context()); err != nil || got.Held != sleeperPool {
			t.Errorf("read meanwhile: got %+v, %v, want the pool as it is", got, err)
		}
		close(on)
		if err := <-done; err != nil {
			t.Errorf("held at %s: %v", at, err)
		}
		if got, want := s.posted(), []string{"/pause?mode=keep", "/release_kv_cache_memory"}; !slices.Equal(got, want) {
			t.Errorf("got %v posted, want %v", got, want)
		}
	}
}
