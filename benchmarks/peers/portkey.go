package peers

import (
	_ "embed"
	"path/filepath"
)

//go:embed locks/portkey-package.json
var portkeyPackage []byte

//go:embed locks/portkey-package-lock.json
var portkeyLock []byte

//go:embed conf/loopback.cjs
var loopbackOnly string

// portkey comes with its HTTP library held at 1.13.8: with a newer one it answers
// 500 to every request (Portkey-AI/gateway issue 1389). It is told
// in each request where the server is, which is how the gateway without an
// account is meant to be used.
func portkey() Peer {
	entry := func(root string) string {
		return filepath.Join(root, "node_modules/@portkey-ai/gateway/build/start-server.js")
	}
	return Peer{
		Name: "portkey", Version: "1.15.2", Registry: "npm", Gateway: true,
		Settings: []string{"benchmarks/peers/portkey.go", "benchmarks/peers/conf/loopback.cjs"},
		Headers: func(upstream string) []string {
			return []string{
				"x-portkey-provider: openai",
				"x-portkey-custom-host: http://" + upstream + "/v1",
				"Authorization: Bearer none",
			}
		},
		recipe: recipe{
			needs: []string{"node", "npm"},
			files: map[string][]byte{"package.json": portkeyPackage, "package-lock.json": portkeyLock},
			// Its one install script patches packages that are not shipped to users.
			steps:   [][]string{{"npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"}},
			differs: [][]string{{"node", "--version"}},
		},
		version: func(root string) []string {
			return []string{"node", "-p", "require('ROOT/node_modules/@portkey-ai/gateway/package.json').version"}
		},
		launch: func(at place) launch {
			return launch{
				files: map[string]string{"loopback.cjs": loopbackOnly},
				argv: []string{
					"node", "--require", filepath.Join(at.Work, "loopback.cjs"), entry(at.Root),
					"--port=" + at.Port,
					"--headless", // no console page
				},
				env: []string{"NODE_ENV=production"},
			}
		},
	}
}
