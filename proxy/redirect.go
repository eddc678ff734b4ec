package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// turnHome makes an upstream's redirect to itself one to Lull. A server names itself
// by the Host that it was called by, which is its own address: FastAPI does so for a
// path with a slash too many. Clients would go there, around keys, Gate and accounts,
// or find nobody. What names another host, or cannot be said by a path alone, stays.
func (u upstream) turnHome(h http.Header) {
	location := h.Get("Location")
	if location == "" {
		return
	}
	to, err := url.Parse(location)
	if err != nil || to.Host == "" || !strings.EqualFold(to.Host, u.url.Host) || to.User != nil {
		return
	}
	path, ok := strings.CutPrefix(to.EscapedPath(), strings.TrimSuffix(u.url.EscapedPath(), "/"))
	if !ok || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") { // "//x" names a host
		return
	}
	if to.RawQuery != "" || to.ForceQuery {
		path += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		path += "#" + to.EscapedFragment()
	}
	h["Location"] = []string{path}
}
