package endpoint

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddressesAreReadAsTheyAreSpelled(t *testing.T) {
	for raw, want := range map[string]struct{ shown, base, host, socket string }{
		"http://127.0.0.1:8000":        {"http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", ""},
		"http://127.0.0.1:8000/":       {"http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", ""},
		"https://llm.lan/vllm//":       {"https://llm.lan/vllm", "https://llm.lan/vllm", "llm.lan", ""},
		"http://[::1]:8000":            {"http://[::1]:8000", "http://[::1]:8000", "[::1]:8000", ""},
		"unix:///run/vllm/api.sock":    {"unix:///run/vllm/api.sock", "http://localhost", "", "/run/vllm/api.sock"},
		"unix:///run/a%20b.sock":       {"unix:///run/a%20b.sock", "http://localhost", "", "/run/a b.sock"},
		"unix:/run/vllm.sock":          {"unix:///run/vllm.sock", "http://localhost", "", "/run/vllm.sock"},
		"http://:8000":                 {"http://:8000", "http://:8000", ":8000", ""},
		"HTTPS://127.0.0.1:8443/a%2Fb": {"https://127.0.0.1:8443/a%2Fb", "https://127.0.0.1:8443/a%2Fb", "127.0.0.1:8443", ""},
	} {
		at, err := Parse(raw)
		if err != nil || at.String() != want.shown || at.Base() != want.base || at.Host() != want.host || at.Socket() != want.socket {
			t.Errorf("%s: got %q %q %q %q, %v; want %+v", raw, at.String(), at.Base(), at.Host(), at.Socket(), err, want)
		}
		if at.Encrypted() != strings.HasPrefix(strings.ToLower(raw), "https") {
			t.Errorf("%s: encrypted %v", raw, at.Encrypted())
		}
		if got := at.URL().JoinPath("/v1/models").String(); got != want.base+"/v1/models" {
			t.Errorf("%s: a path goes to %s", raw, got)
		}
	}
}

func TestBadAddressesAreRefusedByTheRuleTheyBreak(t *testing.T) {
	const socket = "want unix:// and the absolute path of a socket: unix:///run/vllm/api.sock"
	for raw, want := range map[string]string{
		"":                  `got "", want ` + Forms,
		"127.0.0.1:8000":    `got "127.0.0.1:8000", want ` + Forms,
		"ftp://x":           `got "ftp://x", want ` + Forms,
		"http://a b":        `got "http://a b", want ` + Forms,
		"http://u:p@x":      `got "http://...@x", want no user and no password in it`,
		"http://u:p@x:bad":  `got "http://...@x:bad", want ` + Forms,
		"http://x?key=sk-1": `got "http://x?...", want no query and no fragment`,
		"http://x?":         `got "http://x?...", want no query and no fragment`,
		"http://x#a":        `got "http://x#a", want no query and no fragment`,
		"unix://run/x.sock": `got "unix://run/x.sock", ` + socket,
		"unix:x.sock":       `got "unix:x.sock", ` + socket,
		"unix:///":          `got "unix:///", ` + socket,
		"unix:///run/":      `got "unix:///run/", ` + socket,
		"unix:///" + strings.Repeat("x", 107): `got "unix:///` + strings.Repeat("x", 107) +
			`", a path of 108 bytes, want at most 107: no unix socket can have a longer one`,
	} {
		if at, err := Parse(raw); err == nil || err.Error() != want || at != (Endpoint{}) {
			t.Errorf("%q: got %v, %v\nwant %s", raw, at, err, want)
		}
	}
}

func FuzzWhatIsParsedIsUsable(f *testing.F) {
	for _, seed := range []string{"http://x:1/a", "unix:///a", "https://[::1]", "unix://a/b", "http://x/%", "http://%zz", "unix:///%00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		at, err := Parse(raw)
		if err != nil {
			if !strings.Contains(err.Error(), "want ") {
				t.Errorf("%q: error %q says no rule", raw, err)
			}
			return
		}
		again, err := Parse(at.String())
		if err != nil || again.Base() != at.Base() || again.Socket() != at.Socket() {
			t.Errorf("%q: %q is another address: %v, %v", raw, at, again, err)
		}
		if strings.HasSuffix(at.Base(), "/") || (at.Socket() == "") == (at.Host() == "") {
			t.Errorf("%q: base %q, socket %q, host %q", raw, at.Base(), at.Socket(), at.Host())
		}
	})
}
