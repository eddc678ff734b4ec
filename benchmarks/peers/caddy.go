package peers

import (
	_ "embed"
	"path/filepath"
)

//go:embed conf/Caddyfile
var caddyfile string

// caddy is built from its module; the module's own go.sum pins the rest.
func caddy() Peer {
	const version = "v2.11.9"
	binary := func(root string) string { return filepath.Join(root, "caddy") }
	return Peer{
		Name: "caddy", Version: version, Registry: "the Go module proxy", Settings: []string{"benchmarks/peers/conf/Caddyfile"},
		recipe: recipe{
			needs: []string{"go"},
			steps: [][]string{{"go", "install", "-trimpath", "github.com/caddyserver/caddy/v2/cmd/caddy@" + version}},
			// GOFLAGS may ask for things of the checkout, such as -mod=vendor.
			env:     []string{"GOBIN=ROOT", "CGO_ENABLED=0", "GOFLAGS="},
			differs: [][]string{{"go", "version"}},
		},
		// "caddy version" knows only what its release build wrote into it.
		version: func(root string) []string {
			return []string{"sh", "-c", "go version -m ROOT/caddy | awk '$1 == \"mod\" {print $3}'"}
		},
		launch: func(at place) launch {
			return launch{
				files: map[string]string{"Caddyfile": render(caddyfile, at)},
				argv:  []string{binary(at.Root), "run", "--adapter", "caddyfile", "--config", filepath.Join(at.Work, "Caddyfile")},
			}
		},
	}
}
