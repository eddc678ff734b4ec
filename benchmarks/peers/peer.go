package peers

import (
	"fmt"
	"slices"
	"strings"
)

// Peer is one proxy and how it comes here.
type Peer struct {
	// Name is what tables and flags call it.
	Name string
	// Version is the pin; Registry where it comes from.
	Version, Registry string
	// Gateway is true for a proxy made for LLM servers.
	Gateway bool
	// Settings names the files of this repository with its configuration.
	Settings []string
	// Headers are lines that a request to it must carry, given the address of the
	// upstream; nil for none.
	Headers func(upstream string) []string

	recipe  recipe
	version func(root string) []string // prints the version that was installed
	launch  func(place) launch
}

// place is where and beside what a peer runs.
type place struct {
	Root     string // what was installed
	Work     string // a folder of its own, gone when it ends
	Addr     string // where it listens, host:port
	Port     string // of Addr
	Second   string // a second free port
	Upstream string // host:port
	Cores    int
}

// launch is how a peer is started.
type launch struct {
	files map[string]string // by name inside Work
	argv  []string
	env   []string
}

// All is every peer, in the order of the tables.
func All() []Peer {
	return []Peer{nginx(), haproxy(), caddy(), litellm(), vllmRouter(), portkey()}
}

// Named picks peers by name, in the order of All; no names pick all.
func Named(names []string) ([]Peer, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	for _, p := range all {
		known = append(known, p.Name)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("peers: got %q, want some of %s", n, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(p Peer) bool { return !slices.Contains(names, p.Name) }), nil
}
