package sidecar

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
)

// whole answers every request at once.
func whole(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
	}
}

func TestReloadTakesEffectAndCutsNoStream(t *testing.T) {
	up := newSlow()
	l := newLone(t, up, func(f *config.File) { f.SLO.TTFT, f.SLO.TTFTTarget = time.Minute, 1 }, nil)
	other := httptest.NewServer(whole(firstEvent + lastEvent + ": other\n\n"))
	defer other.Close()
	stream := l.open()
	next := l.file
	next.Engines = slices.Clone(next.Engines)
	next.Engines[0].URL = other.URL
	next.SLO.TTFT = time.Hour
	next.Proxy.IdleTimeout = time.Minute
	changed, restart, err := l.sidecar.Reload(next)
	if want := []string{"engines[0].url", "proxy.idle_timeout", "slo.ttft"}; err != nil || !slices.Equal(changed, want) || len(restart) > 0 {
		t.Fatalf("changed %v, restart %v, %v; want %v", changed, restart, err, want)
	}
	l.chat(firstEvent + lastEvent + ": other\n\n")
	if changed, _, err := l.sidecar.Reload(next); err != nil || len(changed) > 0 {
		t.Errorf("the same again: changed %v, %v; want nothing", changed, err)
	}
	up.finish()
	if rest, err := io.ReadAll(stream.Body); err != nil || string(rest) != lastEvent {
		t.Errorf("the open stream: got %q, %v; want its end from the upstream of before", rest, err)
	}
	// The stream counts under the objective that it was promised, which is in the book
	// no more: one sample is left, under the new limit.
	l.until("the request is counted", func() bool {
		s := l.sidecar.loop.view.read().SLO[0]
		return len(s.Objectives) == 1 && s.Objectives[0].Limit == "1h0m0s" && s.Objectives[0].Total.Within == 1
	})
}

func TestReloadKeepsTheCountsOfAnObjectiveThatIsAsItWas(t *testing.T) {
	c := chatSLO()
	s := newScorer(c)
	s.done(s.ask(asked{tier: "gold"}, proxy.Request{PromptTokens: 15}), s.record(50*msec, 0, 1))
	old := s.ask(asked{}, proxy.Request{})
	s.done(old, s.record(50*msec, 0, 1))
	s.clock = s.clock.Add(time.Hour)
	c.TTFT = 30 * msec
	s.declare(c)
	s.done(s.ask(asked{}, proxy.Request{}), s.record(40*msec, 0, 1))
	s.done(old, s.record(40*msec, 0, 1)) // was promised the limit of before
	gold, ordinary := s.kind(t, "gold", 0), s.kind(t, "default", 0)
	if gold.Total.Within != 1 || gold.Windows[3].Covered < 3600 {
		t.Errorf("gold: %+v, want the sample of before and its time", gold)
	}
	if ordinary.Total.Within != 0 || ordinary.Total.Beyond != 1 || ordinary.Windows[3].Covered > 60 {
		t.Errorf("default: %+v, want only what came under the new limit, from then on", ordinary)
	}
}

func TestDrainGoesByTheConfigInForce(t *testing.T) {
	l := newLone(t, newSlow(), func(f *config.File) { f.Proxy.DrainTimeout = time.Hour }, nil)
	stream := l.open()
	next := l.file
	next.Proxy.DrainTimeout = 10 * time.Millisecond
	if _, _, err := l.sidecar.Reload(next); err != nil {
		t.Fatal(err)
	}
	l.end()
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("got a clean end, want the stream cut")
	}
}

// followed is a lone sidecar that follows a file.
func followed(t *testing.T, text func(url string) string) (l *lone, write func(string)) {
	t.Helper()
	up := httptest.NewServer(whole(firstEvent + lastEvent))
	t.Cleanup(up.Close)
	path := filepath.Join(t.TempDir(), "lull.yaml")
	write = func(more string) {
		if err := os.WriteFile(path, []byte(text(up.URL)+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	l = newLone(t, http.NotFoundHandler(), func(f *config.File) {
		read, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		*f = read
	}, func(s *Sidecar) { s.Follow(path, func() (config.File, error) { return config.Load(path) }) })
	return l, write
}

func plainFile(url string) string {
	return "listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nengines: [{name: main, kind: auto, url: \"" + url + "\"}]\n"
}

func TestBadConfigIsRefusedWithKeyValueAndRuleAndTheOldOneStays(t *testing.T) {
	l, write := followed(t, plainFile)
	write("slo: {ttft: 5}\n")
	l.sidecar.ReloadNow()
	l.logged(`config refused; the old one stays" why=asked err=`)
	problems := func() string { return strings.Join(l.sidecar.loop.view.read().Problems, "\n") }
	const start, end = "config: the file is refused and the old one stays, but a restart would fail: ", "slo.ttft: got 5, want a duration such as 12ms or 10s"
	if got := problems(); !strings.Contains(got, start) || !strings.Contains(got, end) {
		t.Errorf("problems %q, want %q and %q", got, start, end)
	}
	l.logged(`slo.ttft: got 5, want a duration such as 12ms or 10s`)
	l.chat(firstEvent + lastEvent)
	write("slo: {ttft: 5s}\n")
	l.sidecar.ReloadNow()
	l.logged(`config reloaded" why=asked changed=[slo.ttft]`)
	if got := problems(); strings.Contains(got, start) {
		t.Errorf("problems %q after a good file, want that of the config gone", got)
	}
	l.shows(`lull_config_reloads_total{result="ok"} 1`, `lull_config_reloads_total{result="refused"} 1`)
}

func TestKeysThatNeedARestartAreNamed(t *testing.T) {
	l, write := followed(t, plainFile)
	write("state_dir: /elsewhere\npolicy: {quantum: 32MiB}\nslo: {tbt: 1s}\n")
	l.sidecar.ReloadNow()
	l.logged(`these keys need a restart; their old values stay" keys="[state_dir policy.quantum]"`)
	l.logged(`config reloaded" why=asked changed=[slo.tbt]`)
}

func TestFileThatChangesIsReadByItself(t *testing.T) {
	l, write := followed(t, plainFile)
	write("auth: {keys: [{name: a, hash: \"" + hashOf("sk-a") + "\"}]}\n")
	l.logged(`config reloaded" why="file changed" changed=[auth.keys]`)
	if status, _, body, err := l.call("POST", l.base+chatPath, "{}", nil); err != nil || status != 401 {
		t.Errorf("without a key: %d %s, %v; want 401", status, body, err)
	}
	if status, _, body, err := l.call("POST", l.base+chatPath, "{}", http.Header{"Authorization": {"Bearer sk-a"}}); err != nil || status != 200 {
		t.Errorf("with it: %d %s, %v; want 200", status, body, err)
	}
}

func TestReloadOfWhatIsNotServingIsRefused(t *testing.T) {
	s, err := New(config.ForUpstream("http://127.0.0.1:1"), quietLogger())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Reload(s.file); !errors.Is(err, errNotServing) || err.Error() != "reload: the sidecar is not serving; the config stays as it is" {
		t.Errorf("before Run: %v", err)
	}
	l := newLone(t, whole(lastEvent), nil, nil)
	l.end()
	if _, _, err := l.sidecar.Reload(l.file); !errors.Is(err, errNotServing) {
		t.Errorf("after the drain: %v", err)
	}
}

func TestReloadWithoutAFileSaysSo(t *testing.T) {
	l := newLone(t, whole(lastEvent), nil, nil)
	l.sidecar.ReloadNow()
	l.logged("config not reloaded: it stands on the command line, in no file")
}

func TestMergedConfigMustBeValidToo(t *testing.T) {
	l := newLone(t, whole(lastEvent), nil, nil)
	next := l.file
	next.Listen = strings.TrimPrefix(l.file.Engines[0].URL, "http://") // ours, in the new file
	next.Engines = []config.Engine{{Name: "main", Kind: "auto", URL: "http://127.0.0.1:0"}}
	_, _, err := l.sidecar.Reload(next)
	if err == nil || err.Error() != `engines[0].url: got "http://127.0.0.1:0", want the LLM server's address: this is Lull's own (listen) (with what needs a restart as it is: [listen])` {
		t.Errorf("error %v", err)
	}
	l.chat(lastEvent)
}

func TestUpstreamsKeyIsReadAgain(t *testing.T) {
	seen := make(chan string, 4)
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-key\n")
	l := newLone(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == chatPath {
			seen <- r.Header.Get("Authorization")
		}
	}), func(f *config.File) { f.Proxy.UpstreamKeyFile = path }, nil)
	l.chat("")
	write("second-key")
	if _, _, err := l.sidecar.Reload(l.file); err != nil {
		t.Fatal(err)
	}
	l.chat("")
	if a, b := <-seen, <-seen; a != "Bearer first-key" || b != "Bearer second-key" {
		t.Errorf("upstream got %q and %q", a, b)
	}
	write(" \n")
	if _, _, err := l.sidecar.Reload(l.file); err == nil || err.Error() != `proxy.upstream_key_file: got "`+path+`", which has nothing in it, want the upstream's API key there` {
		t.Errorf("empty file: %v", err)
	}
	l.chat("")
	if c := <-seen; c != "Bearer second-key" {
		t.Errorf("after the refusal the upstream got %q", c)
	}
}

func TestMissingUpstreamKeyIsSaidAtTheStart(t *testing.T) {
	t.Setenv("LULL_TEST_UPSTREAM_KEY", "")
	for want, change := range map[string]func(*config.Proxy){
		`proxy.upstream_key_env: got "LULL_TEST_UPSTREAM_KEY", which has nothing in it, want the upstream's API key there`: func(p *config.Proxy) { p.UpstreamKeyEnv = "LULL_TEST_UPSTREAM_KEY" },
		`proxy.upstream_key_file: open /nowhere/key: no such file or directory`:                                            func(p *config.Proxy) { p.UpstreamKeyFile = "/nowhere/key" },
	} {
		f := config.ForUpstream("http://127.0.0.1:1")
		change(&f.Proxy)
		if _, err := New(f, quietLogger()); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestInterferenceIsTakenOverWhileItRuns(t *testing.T) {
	c := newCompute(true, config.Interference{Yield: config.Never, Pace: config.Never, ProgressFloor: 0.05}, nil)
	c.set(true, both)
	if !c.active() || !c.yields || !c.pace.Load() {
		t.Error("not active after both were switched on")
	}
	c.set(false, both)
	if c.active() {
		t.Error("active where nothing is promised any more")
	}
}

func TestWhatMayBePromisedIsKnown(t *testing.T) {
	f := config.Default()
	if f.SLO.Promises() {
		t.Error("the default promises nothing")
	}
	f.SLO.Overrides.TPOTMax = time.Second
	if !f.SLO.Promises() || !chatSLO().Promises() {
		t.Error("a client may ask for a limit, or the config has one")
	}
}
