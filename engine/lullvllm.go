package engine

import "fmt"

// openLullVLLM opens a vLLM with Lull's plugin, whose telemetry is a page of
// shared memory.
func openLullVLLM(c Config) (Engine, error) {
	return nil, fmt.Errorf("engine %s: kind %s: this build cannot read the page %q; use kind vllm", c.Name, KindLullVLLM, c.Page)
}
