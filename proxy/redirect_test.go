package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestUpstreamsRedirectToItselfLeadsBackToLull: by the address that it knows, a client
// would go around Lull.
func TestUpstreamsRedirectToItselfLeadsBackToLull(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		for base, locations := range map[string]map[string]string{
			"": {
				"http://HOST/v1/models?a=%2F&b#c":   "/v1/models?a=%2F&b#c",
				"https://HOST/v1/a%2Fb":             "/v1/a%2Fb",
				"//HOST/v1":                         "/v1",
				"/v1/models":                        "/v1/models",
				"http://elsewhere.example/v1":       "http://elsewhere.example/v1",
				"http://HOST//elsewhere.example/v1": "http://HOST//elsewhere.example/v1",
				"http://user@HOST/v1":               "http://user@HOST/v1",
				"http://HOST":                       "http://HOST",
				"http://HOST.elsewhere.example/v1":  "http://HOST.elsewhere.example/v1",
				"http://%zz":                        "http://%zz",
			},
			"/base": {
				"http://HOST/base/v1":  "/v1",
				"http://HOST/other":    "http://HOST/other",
				"http://HOST/baseline": "http://HOST/baseline",
			},
		} {
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Location", strings.ReplaceAll(r.Header.Get("X-Location"), "HOST", r.Host))
				w.WriteHeader(http.StatusTemporaryRedirect)
			})
			r = newRigTo(t, r.upstream.URL+base)
			host := strings.TrimPrefix(strings.TrimSuffix(r.proxy.upstreams[0].url.String(), base), "http://")
			for location, want := range locations {
				req, _ := http.NewRequest("POST", r.server.URL+path, strings.NewReader("{}"))
				req.Header.Set("X-Location", location)
				res, err := r.client.Transport.RoundTrip(req) // it does not read the field
				if err != nil {
					t.Errorf("%s: %v", location, err)
					continue
				}
				res.Body.Close()
				if want = strings.ReplaceAll(want, "HOST", host); res.Header.Get("Location") != want {
					t.Errorf("%s at %q: got %q, want %q", location, base, res.Header.Get("Location"), want)
				}
			}
		}
	})
}
