package proxy

import (
	"net/http"
	"net/textproto"
	"strings"
)

// wantsUpgrade says that a request asks to leave HTTP (RFC 9110, 7.8): without the
// token in Connection an Upgrade field means nothing.
func wantsUpgrade(h http.Header) bool {
	for _, line := range h["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(token), "upgrade") {
				return h.Get("Upgrade") != ""
			}
		}
	}
	return false
}

// withoutHTTPUpgrade is h without the wish to go on in another HTTP on the same
// connection (h2c, or TLS with HTTP in it): behind it requests would pass unseen, without a key, a Gate or
// an account. Nobody loses by it: a server may always go on as it began (RFC 9110,
// 7.8), and HTTP/2 clients begin in it. Other protocols stay, as WebSocket does.
func withoutHTTPUpgrade(h http.Header) http.Header {
	asked := strings.Join(h["Upgrade"], ",")
	if asked == "" {
		return h
	}
	var kept []string
	for token := range strings.SplitSeq(asked, ",") {
		token = textproto.TrimString(token)
		name, _, _ := strings.Cut(strings.ToLower(token), "/")
		if name != "" && name != "h2c" && name != "h2" && name != "http" && name != "tls" {
			kept = append(kept, token)
		}
	}
	h = h.Clone()
	delete(h, "Http2-Settings")
	delete(h, "Upgrade")
	if len(kept) > 0 {
		h["Upgrade"] = []string{strings.Join(kept, ", ")}
	}
	return h
}
