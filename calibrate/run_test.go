package calibrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
)

func TestIdleEmulatorIsMeasuredAndTheFileGetsItsObjectives(t *testing.T) {
	path, before := someFile(t)
	cfg := quick(emulated(t))
	cfg.Write, cfg.Factor = path, 3
	var out strings.Builder
	if err := Run(t.Context(), &out, cfg); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"model lull-emulated (emulator): 12 requests one at a time after 2 of warm-up, seed 1", "Theil-Sen fit of 12 requests", "mean of 48 gaps in 12 answers", "load: no other request in ", "objectives at 3 times that:", path + ": slo.ttft, ttft_per_token, ttft_factor and tbt are set"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	f, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	s := f.SLO
	printed := fmt.Sprintf("slo:\n  ttft: %s\n  ttft_per_token: %s\n  ttft_factor: 3\n  tbt: %s\n", config.DurationText(s.TTFT), config.DurationText(s.TTFTPerToken), config.DurationText(s.TBT))
	if s.TTFT <= 0 || s.TBT <= 0 || s.TTFTFactor != 3 || s.Success != 0.999 || !strings.Contains(out.String(), printed) {
		t.Errorf("the file has %+v, want what was printed:\n%s", s, out.String())
	}
	after := read(t, path)
	for _, line := range strings.Split(before, "\n") {
		if !strings.Contains(line, "ttft") && !strings.Contains(after, line) {
			t.Errorf("the file lost the line %q:\n%s", line, after)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v, want 0640 as before", st.Mode(), err)
	}
}

func TestWithoutAFileOnlyTheTableIsPrinted(t *testing.T) {
	var out strings.Builder
	if err := Run(t.Context(), &out, quick(emulated(t))); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "ms\n") || !strings.Contains(out.String(), "slo:\n  ttft: ") {
		t.Errorf("got\n%s\nwant the objectives at the end", out.String())
	}
}

func TestLoadedServerIsRefusedUnlessForced(t *testing.T) {
	path, before := someFile(t)
	cfg := quick(emulated(t))
	cfg.Write = path
	occupy(t, cfg.Upstream)
	run := func() (string, error) {
		var out strings.Builder
		err := runWith(t.Context(), &out, cfg, 50*ms)
		return out.String(), err
	}
	out, err := run()
	want := "calibrate: write " + path + ": loaded: the server had up to 1 requests running or waiting beside ours, want 0; nothing is written: wait until the server has no other request and run it again, or give --force"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s\n%s", err, want, out)
	}
	if !strings.Contains(out, "load: up to 1 other requests in ") {
		t.Errorf("the table does not show the load:\n%s", out)
	}
	if after := read(t, path); after != before {
		t.Errorf("the file was written:\n%s", after)
	}
	cfg.Force = true
	if out, err := run(); err != nil || !strings.Contains(out, "written by force, although loaded: ") || read(t, path) == before {
		t.Errorf("by force: %v\n%s", err, out)
	}
}

func TestLullsOwnAddressIsRefused(t *testing.T) {
	asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusMisdirectedRequest)
		_, _ = io.WriteString(w, `{"error":{"code":"`+engine.CodeOwnAddress+`"}}`)
	}))
	defer asked.Close()
	var out strings.Builder
	err := Run(t.Context(), &out, quick(asked.URL))
	if out.Len() > 0 {
		t.Errorf("it prints %q before it says so, want nothing: nothing is measured", out.String())
	}
	want := "calibrate: --upstream: " + asked.URL + ": it is Lull's own address, want the LLM server's (engines[].url of that Lull's config); nothing is measured"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAdviceMendsTheRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Result)
		want   string
	}{
		"loaded": {func(r *Result) { r.Load.Others = 1; r.TTFT.Spread = 1 }, "wait until the server has no other request and run it again"},
		"noisy":  {func(r *Result) { r.Gap.Spread = 0.41 }, "end what else computes on the server's machine and run it again, or take it as it is with --max-spread 0.45"},
		"wild":   {func(r *Result) { r.TTFT.Spread = 12.6 }, "end what else computes on the server's machine and run it again"},
		"no gap": {func(r *Result) { r.Gap.Mean = 0 }, "ask for longer answers (--answers)"},
	} {
		r := result(t, nil)
		c.change(&r)
		if got := r.advice(); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestNoisyServerIsRefused(t *testing.T) {
	path, before := someFile(t)
	cfg := quick(emulated(t))
	cfg.Write, cfg.MaxSpread = path, 1e-9
	err := Run(t.Context(), &strings.Builder{}, cfg)
	if err == nil || !strings.Contains(err.Error(), "noisy ttft: nine of ten runs stay within ") || !strings.Contains(err.Error(), "want 0.0 % (--max-spread)") ||
		!strings.Contains(err.Error(), "; nothing is written: end what else computes on the server's machine and run it again") {
		t.Errorf("got %v, want the rule on the spread", err)
	}
	if read(t, path) != before {
		t.Error("the file was written")
	}
}

func TestBadFileIsRefusedBeforeAnythingIsMeasured(t *testing.T) {
	dir := t.TempDir()
	braces, invalid := filepath.Join(dir, "braces.yaml"), filepath.Join(dir, "invalid.yaml")
	for path, text := range map[string]string{braces: "engines: [{name: a, kind: vllm, url: 'http://a:1'}]\nslo: {ttft: 1s}\n", invalid: "engines: []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "no such file or directory; want a config file that is there (`lull config --print-default > ",
		braces:                          braces + `: slo: got "slo: {ttft: 1s}" on line 2, want the section's keys below it, one a line; nothing is written`,
		invalid:                         invalid + ": engines: got none, want at least one with a url",
		dir:                             dir + ": is a directory; nothing is written",
	} {
		cfg := quick("http://127.0.0.1:1") // nobody listens: it must not come to that
		cfg.Write = path
		if err := Run(t.Context(), &strings.Builder{}, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestLinkStaysALinkAndItsFileIsReplaced(t *testing.T) {
	path, _ := someFile(t)
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 || read(t, path) != "new" {
		t.Errorf("link %v, %v, file %q", st.Mode(), err, read(t, path))
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".lull-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := replaceFile(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a file that is gone was replaced")
	}
}

func TestServerThatCannotBeMeasuredIsAnErrorThatSaysWhy(t *testing.T) {
	content := `{"choices":[{"delta":{"content":"a"}}]}`
	usage := `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	for name, c := range map[string]struct {
		chat http.HandlerFunc
		want string
	}{
		"wrong model": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "{\"error\":\"no  such\nmodel\"}", http.StatusNotFound)
		},
			`got status 404, want 200 (is --model one that the server has?): {"error":"no such model"}; nothing is written`},
		"too long": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "too long", http.StatusBadRequest) },
			"calibrate: request of 256 words for 8 tokens to URL: got status 400, want 200 (a prompt too long for the model? --prompts and --answers set the lengths): too long; nothing is written"},
		"key": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) },
			"got status 401, want 200 (--api-key-env or --api-key-file says where the server's key is): who?"},
		"no usage": {func(w http.ResponseWriter, _ *http.Request) { stream(w, content) }, "got no usage, want prompt_tokens in the last event (stream_options.include_usage)"},
		"no content": {func(w http.ResponseWriter, _ *http.Request) {
			stream(w, `{"choices":[{"delta":{"role":"assistant"}}]}`, usage)
		}, "got an answer without content, want text"},
		"one chunk":  {func(w http.ResponseWriter, _ *http.Request) { stream(w, content, usage) }, "calibrate: got 12 answers of a single chunk each, want at least two chunks somewhere"},
		"one length": {func(w http.ResponseWriter, _ *http.Request) { stream(w, content, content, usage) }, "calibrate: slo: fit ttft: got 12 points of one prompt length, want at least 2 lengths: the server counted the same tokens for every prompt; nothing is written"},
	} {
		t.Run(name, func(t *testing.T) {
			url := fake(t, c.chat)
			want := strings.ReplaceAll(c.want, "URL", url)
			if err := Run(t.Context(), &strings.Builder{}, quick(url)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestServerThatIsNotThereIsNamed(t *testing.T) {
	err := Run(t.Context(), &strings.Builder{}, quick("http://127.0.0.1:1"))
	if err == nil || !strings.HasPrefix(err.Error(), "calibrate: ") || !strings.Contains(err.Error(), "http://127.0.0.1:1/") || !strings.HasSuffix(err.Error(), "; nothing is measured") {
		t.Errorf("got %v, want the address and what follows", err)
	}
}

func TestStrictServerIsAskedWithoutIgnoreEOS(t *testing.T) {
	words := 0
	url := fake(t, func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 1<<16)
		n, _ := r.Body.Read(body)
		if strings.Contains(string(body[:n]), "ignore_eos") {
			http.Error(w, "unknown key ignore_eos", http.StatusUnprocessableEntity)
			return
		}
		words++
		content := `{"choices":[{"delta":{"content":"a"}}]}`
		stream(w, content, content, `{"choices":[],"usage":{"prompt_tokens":`+strings.Repeat("1", 1+words%2)+`,"completion_tokens":2}}`)
	})
	var out strings.Builder
	if err := Run(t.Context(), &out, quick(url)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"answers: the server refuses ignore_eos; they may be shorter than asked", "load: this kind of server does not say what it runs"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestKeyGoesToTheServerAndIsNotPrinted(t *testing.T) {
	var seen string
	url := fake(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Authorization")
		http.Error(w, "no", http.StatusForbidden)
	})
	cfg := quick(url)
	cfg.Key = "sk-secret"
	err := Run(t.Context(), &strings.Builder{}, cfg)
	if seen != "Bearer sk-secret" || err == nil || strings.Contains(err.Error(), "sk-secret") {
		t.Errorf("the server saw %q, the error is %v", seen, err)
	}
}

func TestServerThatDoesNotAnswerIsLeftAfterTheLimit(t *testing.T) {
	url := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client has left
		<-r.Context().Done()
	})
	cfg := quick(url)
	cfg.Limit = 300 * ms
	err := Run(t.Context(), &strings.Builder{}, cfg)
	if want := "calibrate: request of 256 words for 8 tokens to " + url + ": "; err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %sthe limit that passed", err, want)
	}
}

type servedKey struct{}

func TestKeptConnectionThatTheServerClosedIsNoError(t *testing.T) {
	var prompts atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served := r.Context().Value(servedKey{}).(*atomic.Int64); served.Add(1) > 1 {
			panic(http.ErrAbortHandler) // closes a connection on which a request was answered already
		}
		if r.Method == http.MethodGet && r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		content := `{"choices":[{"delta":{"content":"a"}}]}`
		stream(w, content, content, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2}}`, 10+prompts.Add(1)%2))
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, servedKey{}, &atomic.Int64{})
	}
	s.Start()
	t.Cleanup(s.Close)
	if err := Run(t.Context(), &strings.Builder{}, quick(s.URL)); err != nil {
		t.Error(err)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestResultThatCannotBePrintedIsNotWritten(t *testing.T) {
	path, before := someFile(t)
	cfg := quick(emulated(t))
	cfg.Write = path
	const want = "calibrate: print the result: no space left on device; nothing is written"
	if err := Run(t.Context(), full{}, cfg); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if read(t, path) != before {
		t.Error("the file was written")
	}
}

func TestFileThatCannotBeReplacedStaysAsItWas(t *testing.T) {
	path, before := someFile(t)
	r := result(t, nil)
	r.Config.Write = path
	gone := errors.New("the disk is gone")
	err := r.writeWith(io.Discard, func(string, []byte) error { return gone })
	if want := "calibrate: write " + path + ": the disk is gone; the file is as it was"; err == nil || err.Error() != want || !errors.Is(err, gone) {
		t.Errorf("got %v, want %s", err, want)
	}
	if read(t, path) != before {
		t.Error("the file changed")
	}
}
