package proxy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func hashed(keys ...string) (out []KeyHash) {
	for _, k := range keys {
		out = append(out, sha256.Sum256([]byte(k)))
	}
	return out
}

func withKeys(keys ...string) rigOption {
	return withConfig(func(c *Config) { c.Keys = hashed(keys...) })
}

// seenBy is a rig whose upstream shows the header of each request.
func seenBy(t *testing.T, opts ...rigOption) (*rig, chan http.Header) {
	seen := make(chan http.Header, 16)
	return newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r.Header.Clone()
	}, opts...), seen
}

// upstreams is the header of the next request that the upstream got.
func upstreams(t *testing.T, seen chan http.Header) http.Header {
	t.Helper()
	select {
	case h := <-seen:
		return h
	case <-time.After(wait):
		t.Fatal("the upstream got nothing")
		return nil
	}
}

// ask sends a request with a header.
func (r *rig) ask(method, path string, header http.Header) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest(method, r.server.URL+path, strings.NewReader("{}"))
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestKnownKeyPassesAndIsNotForwarded(t *testing.T) {
	r, seen := seenBy(t, withKeys("one", "two", "three"))
	bothPaths(t, func(t *testing.T, path string) {
		for name, h := range map[string]http.Header{
			"bearer":          {"Authorization": {"Bearer two"}},
			"scheme's case":   {"Authorization": {"bEARER three"}},
			"x-api-key":       {"X-Api-Key": {"one"}},
			"api-key":         {"Api-Key": {"one"}},
			"another's field": {"Authorization": {"Bearer two"}, "X-Api-Key": {"sk-elsewhere"}, "Api-Key": {"sk-elsewhere"}, "Proxy-Authorization": {"Bearer two"}},
		} {
			if res := r.ask("POST", path, h); res.StatusCode != 200 {
				t.Errorf("%s: got %d, want it served", name, res.StatusCode)
				continue
			}
			up := upstreams(t, seen)
			for _, field := range append(keyFields[:], "Proxy-Authorization") {
				if v, ok := up[field]; ok {
					t.Errorf("%s: upstream got %s: %q, want none", name, field, v)
				}
			}
		}
	})
}

func TestRequestWithoutAKnownKeyIsRefusedUnread(t *testing.T) {
	r, seen := seenBy(t, withKeys("one", "two"), neverAsked(t))
	for name, h := range map[string]http.Header{
		"none": nil, "other": {"Authorization": {"Bearer onetwo"}}, "prefix": {"Authorization": {"Bearer on"}}, "basic": {"Authorization": {"Basic one"}},
		"empty": {"Authorization": {"Bearer "}}, "too long": {"X-Api-Key": {strings.Repeat("one", 1000)}}, "hash": {"X-Api-Key": {fmt.Sprintf("%x", hashed("one")[0])}},
		"the first counts": {"Authorization": {"Bearer wrong"}, "X-Api-Key": {"one"}},
	} {
		for _, path := range []string{chatPath, "/v1/messages", "/v1/models"} {
			res := r.ask("POST", path, h)
			body := text(t, res)
			if res.StatusCode != 401 || res.Header.Get("WWW-Authenticate") != "Bearer" || res.Header.Get("Retry-After") != "" {
				t.Errorf("%s on %s: got %d %v, want 401 with a challenge", name, path, res.StatusCode, res.Header)
			}
			if want := `"type":"authentication_error"`; !strings.Contains(body, want) || !strings.Contains(body, CodeUnauthorized) {
				t.Errorf("%s on %s: got %s, want %s and the code", name, path, body, want)
			}
			if path == "/v1/models" {
				continue
			}
			rec := r.seen.record(t)
			if rec.Outcome != OutcomeUnauthorized || rec.Status != 401 || rec.RequestBytes != 0 || rec.Model != "" || !rec.Failed() {
				t.Errorf("%s on %s: record %+v, want an unauthorized one, unread", name, path, rec)
			}
		}
	}
	r.idle()
	r.seen.noMore(t)
	select {
	case h := <-seen:
		t.Errorf("upstream: got a request %v, want none", h)
	default:
	}
}

func TestRefusalOfAKeySpeaksTheClientsDialect(t *testing.T) {
	r, _ := seenBy(t, withKeys("one"))
	var open struct {
		Error struct{ Message, Type, Code string }
	}
	body := text(t, r.ask("POST", chatPath, nil))
	if err := json.Unmarshal([]byte(body), &open); err != nil || open.Error.Code != "lull_unauthorized" ||
		open.Error.Message != "lull: no API key came; send one that Lull knows as Authorization: Bearer KEY" {
		t.Errorf("OpenAI's: got %s, %v", body, err)
	}
	var anthropic struct {
		Type      string
		Error     struct{ Type, Message string }
		RequestID string `json:"request_id"`
	}
	body = text(t, r.ask("POST", "/v1/messages", http.Header{"X-Api-Key": {"two"}, "X-Request-Id": {"mine"}}))
	if err := json.Unmarshal([]byte(body), &anthropic); err != nil || anthropic.Type != "error" || anthropic.Error.Type != "authentication_error" || anthropic.RequestID != "mine" ||
		anthropic.Error.Message != "lull: Lull does not know this API key; ask its operator for one (lull_unauthorized)" {
		t.Errorf("Anthropic's: got %s, %v", body, err)
	}
}

func TestPreflightNeedsNoKey(t *testing.T) {
	r, seen := seenBy(t, withKeys("one"))
	if res := r.ask("OPTIONS", chatPath, http.Header{"Access-Control-Request-Method": {"POST"}}); res.StatusCode != 200 {
		t.Errorf("got %d, want it passed: browsers send no key with it", res.StatusCode)
	}
	upstreams(t, seen)
}

func TestWithoutKeysEveryCredentialPassesAsItIs(t *testing.T) {
	r, seen := seenBy(t)
	bothPaths(t, func(t *testing.T, path string) {
		r.ask("POST", path, http.Header{"Authorization": {"Bearer theirs"}, "X-Api-Key": {"theirs too"}})
		if up := upstreams(t, seen); up.Get("Authorization") != "Bearer theirs" || up.Get("X-Api-Key") != "theirs too" {
			t.Errorf("%s: upstream got %v, want both", path, up)
		}
		r.ask("POST", path, nil)
		if up := upstreams(t, seen); up["Authorization"] != nil {
			t.Errorf("%s: upstream got %v, want no credential", path, up)
		}
	})
}

func TestUpstreamsOwnKeyReplacesTheClients(t *testing.T) {
	for name, opts := range map[string][]rigOption{"with keys": {withKeys("one")}, "without": nil} {
		r, seen := seenBy(t, append(opts, withConfig(func(c *Config) { c.UpstreamKey = "engines-own" }))...)
		bothPaths(t, func(t *testing.T, path string) {
			r.ask("POST", path, http.Header{"X-Api-Key": {"one"}, "Authorization": {"Bearer one"}})
			if up := upstreams(t, seen); strings.Join(up["Authorization"], "|") != "Bearer engines-own" || up["X-Api-Key"] != nil {
				t.Errorf("%s: upstream got %v, want its own key alone", name, up)
			}
		})
	}
}

func TestForwardedFieldsPassOnlyWhereTheyAreTrusted(t *testing.T) {
	sent := http.Header{
		"Forwarded": {"for=x"}, "X-Forwarded-For": {"1.2.3.4", "5.6.7.8"}, "X-Forwarded-Host": {"a"}, "X-Forwarded-Proto": {"https"},
		"X-Forwarded-Port": {"443"}, "X-Forwarded-Prefix": {"/p"}, "X-Forwarded-Anything": {"x"},
		"X_forwarded_for": {"1.2.3.4"}, "X-Forwarded_host": {"a"}, "X_forwarded-Proto": {"https"},
	}
	for _, trusted := range []bool{false, true} {
		r, seen := seenBy(t, withConfig(func(c *Config) { c.TrustForwarded = trusted }))
		bothPaths(t, func(t *testing.T, path string) {
			r.ask("POST", path, sent)
			up := upstreams(t, seen)
			for k, v := range sent {
				want := ""
				if trusted {
					want = strings.Join(v, "|")
				}
				if got := strings.Join(up[k], "|"); got != want {
					t.Errorf("trusted %v: upstream got %s %q, want %q", trusted, k, got, want)
				}
			}
			r.ask("POST", path, http.Header{"Connection": {"X-Forwarded-Host"}, "X-Forwarded-Host": {"hop"}})
			if up := upstreams(t, seen); up["X-Forwarded-Host"] != nil {
				t.Errorf("trusted %v: upstream got %v, want what Connection names left out", trusted, up)
			}
		})
	}
}

func TestKeyThatNoHeaderCanCarryIsRefusedWithoutSayingIt(t *testing.T) {
	for _, bad := range []string{"two words", "line\nbreak", "ключ", strings.Repeat("k", mostKey+1)} {
		c := DefaultConfig()
		c.UpstreamKey = Secret(bad)
		const want = "proxy.upstream_key: got a value that no header can carry, want printable ASCII without blanks, at most 512 bytes"
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	c := DefaultConfig()
	c.UpstreamKey = "engines-own"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if got := fmt.Sprintf(verb, c); strings.Contains(got, "engines-own") || strings.Contains(got, fmt.Sprintf("%x", "engines-own")) {
			t.Errorf("%s: got %s", verb, got)
		}
	}
}

// TestEveryKeyIsCompared: a match must not end the search, nor a miss take a way
// of its own.
func TestEveryKeyIsCompared(t *testing.T) {
	p := New(Config{Upstreams: DefaultConfig().Upstreams, IdleLimit: time.Second, ConnectTimeout: time.Second, KeepAlive: time.Second, ScanBytes: 1, Keys: hashed("a", "b", "a")}, nil, nil)
	defer p.Close()
	for key, want := range map[string]bool{"a": true, "b": true, "c": false, "": false} {
		if got := p.knows(key); got != want {
			t.Errorf("%q: got %v, want %v", key, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { p.knows("a key of a usual length, which is longer than a stack buffer") }); n > 1 {
		t.Errorf("allocations: got %v a request, want at most the copy of the key", n)
	}
}

// TestTrailersCarryNothingThatHeadersMayNot: servers may read both alike.
func TestTrailersCarryNothingThatHeadersMayNot(t *testing.T) {
	const sent = "X-Digest: abc\r\nX-Forwarded-For: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nAuthorization: Bearer known\r\nX-Api-Key: known\r\nProxy-Authorization: known\r\n"
	for _, scan := range []int64{1, 1 << 20} { // the body is sent on as it comes, and whole
		bothPaths(t, func(t *testing.T, path string) {
			got := make(chan http.Header, 1)
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				got <- r.Trailer.Clone()
			}, withKeys("known"), withConfig(func(c *Config) { c.ScanBytes = scan }))
			r.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer known\r\nTrailer: X-Digest\r\nTransfer-Encoding: chunked\r\n\r\n" +
				"2\r\n{}\r\n0\r\n" + sent + "\r\n")
			if h := upstreams(t, got); len(h) != 1 || h.Get("X-Digest") != "abc" {
				t.Errorf("scanning %d bytes: the upstream got %v, want the digest alone", scan, h)
			}
		})
	}
}
