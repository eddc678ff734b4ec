package peers

import (
	_ "embed"
	"path/filepath"
)

//go:embed locks/litellm.txt
var litellmLock []byte

//go:embed locks/vllm-router.txt
var vllmRouterLock []byte

//go:embed conf/litellm.yaml
var litellmConf string

// pypi makes an environment of its own from a lock; benchmarks/peers/locks has
// the command that makes one.
func pypi(lock []byte) recipe {
	return recipe{
		needs: []string{"python3"},
		files: map[string][]byte{"lock.txt": lock},
		steps: [][]string{
			{"python3", "-m", "venv", "ROOT/venv"},
			{"ROOT/venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", "lock.txt"},
		},
		differs: [][]string{{"python3", "-c", "import sys; print(sys.version, sys.base_prefix)"}},
	}
}

// installedVersion asks an environment for a package's version.
func installedVersion(distribution string) func(root string) []string {
	return func(root string) []string {
		return []string{filepath.Join(root, "venv/bin/python"), "-c", "import importlib.metadata as m; print(m.version('" + distribution + "'))"}
	}
}

// litellmKey is what LiteLLM wants to start at all. It is no secret: the process
// listens on the loopback for the length of a run.
const litellmKey = "sk-lull-benchmark-7d0b6c1f9a2e4835b1c04f6e"

// litellm runs as its page "Best Practices for Production" says: one Uvicorn
// worker a core, its own logs off.
func litellm() Peer {
	return Peer{
		Name: "litellm", Version: "1.106.12", Registry: "PyPI", Gateway: true,
		Settings: []string{"benchmarks/peers/conf/litellm.yaml", "benchmarks/peers/python.go"},
		Headers:  func(string) []string { return []string{"Authorization: Bearer " + litellmKey} },
		recipe:   pypi(litellmLock), version: installedVersion("litellm"),
		launch: func(at place) launch {
			return launch{
				files: map[string]string{"litellm.yaml": render(litellmConf, at)},
				argv: []string{
					filepath.Join(at.Root, "venv/bin/litellm"), "--config", filepath.Join(at.Work, "litellm.yaml"),
					"--host", "127.0.0.1", "--port", at.Port,
					"--num_workers", render("@CORES@", at), // "match Uvicorn workers to CPU count"
					"--telemetry", "False",
				},
				env: []string{
					"LITELLM_MASTER_KEY=" + litellmKey,
					"LITELLM_LOG=ERROR",                 // the web framework's lines a request off
					"LITELLM_MODE=PRODUCTION",           // no search for .env files
					"LITELLM_LOCAL_MODEL_COST_MAP=True", // the price list that it ships: nothing outside is asked
				},
			}
		},
	}
}

// vllmRouter runs with its defaults but for what one server before it makes
// idle work: round_robin in place of the prefix tree of cache_aware.
func vllmRouter() Peer {
	return Peer{
		Name: "vllm-router", Version: "0.1.17", Registry: "PyPI", Gateway: true,
		Settings: []string{"benchmarks/peers/python.go"},
		recipe:   pypi(vllmRouterLock), version: installedVersion("vllm-router"),
		launch: func(at place) launch {
			return launch{
				argv: []string{
					filepath.Join(at.Root, "venv/bin/vllm-router"), "--host", "127.0.0.1", "--port", at.Port,
					"--worker-urls", "http://" + at.Upstream,
					"--policy", "round_robin", // the cheapest policy: with one server all choose alike
					"--log-level", "warning", // no other peer writes a line a request
					"--prometheus-host", "127.0.0.1", "--prometheus-port", at.Second,
					"--worker-startup-check-interval", "1",
				},
			}
		},
	}
}
