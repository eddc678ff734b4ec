package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
)

func TestProbePrintsLinesThatAreAValidConfig(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := EmulateCommand()
	cmd.SetOut(w)
	cmd.SetArgs(strings.Fields("--listen 127.0.0.1:0 --pool 8MiB --max-model-len 128 --resident 2MiB --model tiny"))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready struct{ Listening string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatal(err)
	}
	text, err := run("probe", ready.Listening)
	if err != nil || !strings.HasPrefix(text, "http://"+ready.Listening+": lull emulate (kind emulator)\n") {
		t.Fatalf("got %v and\n%s", err, text)
	}
	_, yaml, ok := strings.Cut(text, "lines for lull.yaml\n")
	f, err := config.Parse([]byte("devices: [{id: host0, kind: host, capacity: 1GiB}]\n" + yaml))
	if !ok || err != nil || f.Engines[0].Kind != engine.KindEmulator || f.Engines[0].URL != "http://"+ready.Listening {
		t.Errorf("lines %q give %+v, %v", yaml, f.Engines, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestProbeErrorsSayWhatToGiveOrWhatWasFound(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for args, c := range map[string]struct {
		want  string
		usage bool
	}{
		"probe":                               {"probe: got 0 arguments, want the URL of a server", true},
		"probe http://a:1 http://b:1":         {"probe: got 2 arguments, want the URL of a server", true},
		"probe ftp://a:1":                     {`probe: url: got "ftp://a:1", want http://host:port, https://host:port or unix:///path/of/the/socket`, true},
		"probe --timeout 0s http://a:1":       {"probe: timeout: got 0s, want more than 0", true},
		"probe --timeout soon http://a:1":     {`invalid argument "soon" for "--timeout" flag`, true},
		"probe " + web.URL:                    {"engine probe: no LLM server at " + web.URL + ": got /lull/state: 404, /v1/models: 404, /v2: 404", false},
		"probe --timeout 2s 127.0.0.1:1/here": {"engine probe: get http://127.0.0.1:1/here/lull/state: no answer", false},
	} {
		_, err := run(strings.Fields(args)...)
		var usage usageError
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || errors.As(err, &usage) != c.usage {
			t.Errorf("%s: got %v (usage %v), want %s", args, err, errors.As(err, &usage), c.want)
		}
	}
}

func TestProbePrintsWhatItFoundAndFailsWhereItCannotBeRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case "/metrics":
			_, _ = io.WriteString(w, "vllm:kv_cache_usage_perc NaN\n")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	text, err := run("probe", server.URL)
	const want = "vllm:kv_cache_usage_perc: got NaN, want a number of 0 or more"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(text, "  trouble        engine probe: "+server.URL+"/metrics: "+want+"\n") {
		t.Errorf("got %v and\n%s", err, text)
	}
}
