package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"maps"
	"net/http"
	"strings"
)

// KeyHash is the SHA-256 of an API key. The key itself is nowhere in Lull.
type KeyHash = [sha256.Size]byte

// mostKey is the longest API key, in bytes. A longer one is refused without
// hashing it: a header may be a megabyte.
const mostKey = 512

// Secret is a text that prints as nothing but its name.
type Secret string

// String and GoString keep it out of logs.
func (Secret) String() string { return "[secret]" }

// GoString is String.
func (Secret) GoString() string { return "[secret]" }

// fits says that a header's value may hold it; an empty one is none.
func (s Secret) fits() bool {
	for i := range len(s) {
		if s[i] <= 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return len(s) <= mostKey
}

// keyFields carry API keys: of OpenAI's clients, Anthropic's and Azure's.
var keyFields = [...]string{"Authorization", "X-Api-Key", "Api-Key"}

// CallersKey is the API key that a request carries: the bearer token, else
// X-Api-Key, else Api-Key; "" for none.
func CallersKey(h http.Header) string {
	const bearer = "bearer "
	if v := h.Get("Authorization"); len(v) > len(bearer) && strings.EqualFold(v[:len(bearer)], bearer) {
		return strings.TrimSpace(v[len(bearer):])
	}
	if v := h.Get("X-Api-Key"); v != "" {
		return v
	}
	return h.Get("Api-Key")
}

// knows says that key is one of the config's. Every hash is compared, each in
// constant time: how long it takes tells nothing of a key.
func (p *Proxy) knows(key string) bool {
	if key == "" || len(key) > mostKey {
		return false
	}
	sum := sha256.Sum256([]byte(key))
	found := 0
	for i := range p.cfg.Keys {
		found |= subtle.ConstantTimeCompare(sum[:], p.cfg.Keys[i][:])
	}
	return found == 1
}

// identify makes a request's header say who sends it to the upstream: the
// clients' keys are Lull's own business, and what they claim to forward for is
// dropped unless it is trusted.
func (p *Proxy) identify(h http.Header) {
	if !p.cfg.TrustForwarded {
		dropForwarded(h)
	}
	if len(p.cfg.Keys) == 0 && p.cfg.UpstreamKey == "" {
		return
	}
	for _, name := range keyFields {
		delete(h, name)
	}
	if p.cfg.UpstreamKey != "" {
		h["Authorization"] = []string{"Bearer " + string(p.cfg.UpstreamKey)}
	}
}

// cleanTrailer takes out of a request's trailers what its header would not have
// passed on: a server may read both alike. They are whole at the body's end.
func (p *Proxy) cleanTrailer(r *http.Request) {
	h := r.Trailer
	if len(h) == 0 {
		return
	}
	dropNamed(h, connectionNames(r.Header))
	if !p.cfg.TrustForwarded {
		dropForwarded(h)
	}
	if len(p.cfg.Keys) > 0 || p.cfg.UpstreamKey != "" {
		for _, name := range keyFields {
			delete(h, name)
		}
	}
}

// dropForwarded removes what a client may claim about whom it forwards for.
func dropForwarded(h http.Header) {
	for name := range h {
		if forwards(name) {
			delete(h, name)
		}
	}
}

// forwards says that a field is Forwarded or X-Forwarded-*, also with underscores:
// servers that name fields as CGI does (RFC 3875, 4.1.18), such as those of WSGI, read
// both alike.
func forwards(name string) bool {
	const bare, prefix = "Forwarded", "X-Forwarded-"
	if len(name) < len(bare) || name[0] != 'F' && name[0] != 'X' { // canonical, as net/http reads them
		return false
	}
	name = strings.ReplaceAll(name, "_", "-")
	return strings.EqualFold(name, bare) || len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// restoreForwarded puts back what ReverseProxy drops before Rewrite.
func restoreForwarded(out, in http.Header) {
	kept := http.Header{"Connection": in["Connection"]}
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := in[name]; ok {
			kept[name] = v
		}
	}
	dropHop(kept)
	maps.Copy(out, kept)
}
