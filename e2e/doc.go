// Package e2e holds tests only: real LLM servers (vLLM's CPU build, llama.cpp, Triton)
// behind a real `lull serve`, with real training beside them, driven by the real
// OpenAI client.
//
// Each test binary builds lull once and starts each server at most once, on a
// free loopback port, from the environment of `scripts/pyenv full` (Triton: `triton`); it ends them
// by the pid that it started. Nothing here is imported, and nothing here judges
// speed: that is what benchmarks are for. Tests run one after the other, since
// they measure time.
//
//	make test                 # makes the environment, runs this last
//	LULL_TEST_PYTHON=$(scripts/pyenv base) LULL_TEST_PYTHON_FULL=$(scripts/pyenv full) go test -v ./e2e
package e2e
