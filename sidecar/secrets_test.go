package sidecar

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
)

// TestNoKeyOrPromptIsInALogOrMetric sends secrets in every place that a client
// has for them, in requests that are served, refused and broken, and looks for
// them in all that Lull says of itself, debug lines included.
func TestNoKeyOrPromptIsInALogOrMetric(t *testing.T) {
	const own, theirs, prompt, answer = "sk-own-7f3a", "sk-theirs-91bd", "my-prompt-c0ffee", "my-answer-decade"
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte("engine-key-55aa"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole(strings.ReplaceAll(firstEvent, `"a"`, `"`+answer+`"`)+lastEvent)(w, r)
		if r.Header.Get("X-Break") != "" {
			panic(http.ErrAbortHandler)
		}
	})
	l := newLone(t, up, func(f *config.File) {
		f.Auth.Keys = []config.AuthKey{{Name: "a", Hash: hashOf(own)}}
		f.Proxy.UpstreamKeyFile = keyFile
		f.Telemetry.Events = filepath.Join(t.TempDir(), "events.jsonl")
	}, nil)
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + prompt + `"}]}`
	for _, h := range []http.Header{
		{"Authorization": {"Bearer " + own}}, {"X-Api-Key": {own}}, {"Authorization": {"Bearer " + own}, "X-Break": {"1"}},
		{"Authorization": {"Bearer " + theirs}}, {"X-Api-Key": {theirs}}, {"Authorization": {"Basic " + theirs}},
	} {
		for _, path := range []string{chatPath, "/v1/messages", "/v1/embeddings", "/tokenize"} {
			_, _, _, _ = l.call("POST", l.base+path, body, h)
		}
	}
	next := l.file
	next.SLO.TTFT = 1
	if _, _, err := l.sidecar.Reload(next); err != nil {
		t.Fatal(err)
	}
	_, _, metrics, err := l.call("GET", l.admin+"/metrics", "", nil)
	if err != nil || !strings.Contains(metrics, `outcome="unauthorized"} 6`) {
		t.Errorf("%v: metrics lack the six requests with no key or an unknown one", err)
	}
	_, _, state, err := l.call("GET", l.admin+"/api/v1/state", "", nil)
	if err != nil {
		t.Error(err)
	}
	l.end()
	events, err := os.ReadFile(l.file.Telemetry.Events)
	if err != nil {
		t.Error(err)
	}
	for where, text := range map[string]string{"log": l.logs.String(), "metrics": metrics, "state": state, "events": string(events)} {
		for _, secret := range []string{own, theirs, prompt, answer, "engine-key-55aa", hashOf(own)} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s has %s in it:\n%s", where, secret, text)
			}
		}
	}
}

func TestKeyOfAnAuthEntryNamesItsTier(t *testing.T) {
	l := newLone(t, whole(firstEvent+lastEvent), func(f *config.File) {
		f.SLO.Tiers = []config.Tier{{Name: "gold"}}
		f.SLO.Objectives = []config.Objective{{Name: "gold", Tier: "gold", Limits: config.Limits{TTFT: 60_000_000_000}}}
		f.Auth.Keys = []config.AuthKey{{Name: "a", Hash: hashOf("sk-a"), Tier: "gold"}, {Name: "b", Hash: hashOf("sk-b")}}
	}, nil)
	for _, key := range []string{"sk-a", "sk-b"} {
		if status, _, _, err := l.call("POST", l.base+chatPath, `{"stream":true}`, http.Header{"X-Api-Key": {key}}); err != nil || status != 200 {
			t.Errorf("%s: %d, %v", key, status, err)
		}
	}
	l.until("one request is counted under gold", func() bool {
		for _, s := range l.sidecar.loop.view.read().SLO {
			if s.Name == "gold" && len(s.Objectives) == 1 && s.Objectives[0].Total.N() == 1 {
				return true
			}
		}
		return false
	})
}
