package sidecar

import (
	"net"
	"net/url"
	"strconv"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/endpoint"
)

// listenerOf finds the process of a server on this machine; nil for any other,
// whose process is not here to be read.
func listenerOf(raw string) func() (int, error) {
	at, _ := endpoint.Parse(raw) // config has parsed it
	if path := at.Socket(); path != "" {
		return func() (int, error) { return device.PIDBySocket(path) }
	}
	if port := portOf(at.URL()); port != 0 {
		return func() (int, error) { return device.PIDByPort(port) }
	}
	return nil
}

// portOf is the port of a server on this machine, 0 for any other.
func portOf(u *url.URL) int {
	if !local(u.Hostname()) {
		return 0
	}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		return port
	}
	port, _ := net.LookupPort("tcp", u.Scheme)
	return port
}

// local says that a host name or address is this machine's loopback or one of
// its own addresses.
func local(host string) bool {
	addrs, err := net.LookupIP(host)
	if err != nil || len(addrs) == 0 {
		return false
	}
	own, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		mine := a.IsLoopback()
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a) {
				mine = true
			}
		}
		if !mine {
			return false
		}
	}
	return true
}
