package endpoint

import (
	"fmt"
	"net/url"
	"strings"
)

// Forms are the spellings of an address, for errors and help.
const Forms = "http://host:port, https://host:port or unix:///path/of/the/socket"

// longestSocket is the longest path that a unix socket can have, in bytes: a
// zero ends it in sun_path's 108 (unix(7)).
const longestSocket = 107

// Endpoint is where a server listens. The zero value is nowhere.
type Endpoint struct {
	base   url.URL
	socket string
}

// Parse reads an address: http or https with a host and perhaps a path in front
// of all others, or unix with the absolute path of a socket, where HTTP is spoken
// in the clear. The error says which rule was broken and begins with what was
// got; the caller names the key.
func Parse(raw string) (Endpoint, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return Endpoint{}, fmt.Errorf("got %q, want %s", shown(raw), Forms)
	case u.User != nil:
		return Endpoint{}, fmt.Errorf("got %q, want no user and no password in it", shown(raw))
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return Endpoint{}, fmt.Errorf("got %q, want no query and no fragment", shown(raw))
	case u.Scheme == "unix":
		return parseSocket(raw, u)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return Endpoint{}, fmt.Errorf("got %q, want %s", raw, Forms)
	}
	e := Endpoint{base: *u}
	e.base.Path, e.base.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return e, nil
}

func parseSocket(raw string, u *url.URL) (Endpoint, error) {
	switch {
	case u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/"):
		return Endpoint{}, fmt.Errorf("got %q, want unix:// and the absolute path of a socket: unix:///run/vllm/api.sock", raw)
	case len(u.Path) > longestSocket:
		return Endpoint{}, fmt.Errorf("got %q, a path of %d bytes, want at most %d: no unix socket can have a longer one", raw, len(u.Path), longestSocket)
	}
	return Endpoint{base: url.URL{Scheme: "http", Host: "localhost"}, socket: u.Path}, nil
}

// shown is raw without what may be a secret: a user's part and a query.
func shown(raw string) string {
	head, _, cut := strings.Cut(raw, "?")
	if cut {
		head += "?..."
	}
	if at := strings.LastIndex(head, "@"); at >= 0 {
		scheme, _, _ := strings.Cut(head, "//")
		head = scheme + "//..." + head[at:]
	}
	return head
}

// String is the address in the one spelling that Parse reads as the same; "" for
// the zero value.
func (e Endpoint) String() string {
	if e.socket != "" {
		return (&url.URL{Scheme: "unix", Path: e.socket}).String()
	}
	return e.base.String()
}

// Base is what stands in front of a request's path. Behind a unix socket it is
// http://localhost, as curl --unix-socket has it.
func (e Endpoint) Base() string { return e.base.String() }

// URL is Base, parsed; the caller's own.
func (e Endpoint) URL() *url.URL {
	u := e.base
	return &u
}

// Socket is the path of the unix socket, "" for TCP.
func (e Endpoint) Socket() string { return e.socket }

// Host is host:port as it was spelled, the port perhaps missing; "" for a socket.
func (e Endpoint) Host() string {
	if e.socket != "" {
		return ""
	}
	return e.base.Host
}

// Encrypted says that TLS is spoken there.
func (e Endpoint) Encrypted() bool { return e.base.Scheme == "https" }
