# Lull. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help build demo test test-fast race py fuzz lint bench bench-handover bench-rebounds bench-vllm bench-isolation bench-proxy bench-peers bench-clients bench-convergence bench-uneven bench-core gpu-check sysdeps clean

LULL := bin/lull
# The LLM server of `make demo`: emulator or vllm.
ENGINE ?= emulator
DEMO_ENV_vllm := full

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "%-16s %s\n", $$1, $$2}'

# GPUs as devices: NVML is loaded when a lull.yaml names one. That takes a C compiler here (of NVIDIA's nothing) and glibc there; without
# a compiler the binary is static and knows no GPUs. Functions of NVML must be bound when they are called: a machine may have no such library.
HAS_C = $(shell echo '\#include <dlfcn.h>' | $$(go env CC) -E - >/dev/null 2>&1 && echo 1 || echo 0)

build: ## bin/lull, the one binary; where a C compiler is, it can read NVIDIA GPUs
	@[ $(HAS_C) = 1 ] || echo "build: no C compiler (gcc, libc6-dev), so this binary will know no GPUs" >&2
	CGO_ENABLED=$(HAS_C) CGO_CFLAGS="-O2 -Wno-deprecated-declarations" go build -tags netgo,osusergo -ldflags=-extldflags=-Wl,-z,lazy -o $(LULL) .

demo: build ## the main job on this machine in 4 minutes: LLM server, sidecar and a real training job (ENGINE=vllm: a real vLLM)
	@scripts/sysdeps gcc libc6-dev || echo "demo: without a C compiler the trainer's memory goes back more slowly" >&2
	py=$$(scripts/pyenv $(or $(DEMO_ENV_$(ENGINE)),base)) && $(LULL) demo --engine $(ENGINE) --python "$$py"

test: ## every test: Go with -race, Python, real servers end to end; installs what they need
	@scripts/sysdeps python3-venv gcc libc6-dev || [ "$(CI)" != true ]
	python3 scripts/run_tests.py all

test-fast: ## under 3 minutes: Go without -race and real servers, Python without torch
	python3 scripts/run_tests.py fast

race: sysdeps ## all Go tests with the race detector, but those against real servers
	go test -race $$(go list ./... | grep -v /e2e)

py: sysdeps ## all tests of the training runtime
	py=$$(scripts/pyenv base) && cd trainer/python && "$$py" -m pytest -q -m "not gpu"

fuzz: ## every fuzz target for 5 seconds (SECONDS=n)
	scripts/fuzz $(or $(SECONDS),5)

lint: ## gofmt, go vet, staticcheck, ruff, mypy --strict
	scripts/lint

bench: bench-handover bench-vllm bench-proxy bench-core ## all benchmarks

bench-handover: sysdeps ## how long memory takes to come back from a running PyTorch job -> out/bench/handover.json
	py=$$(scripts/pyenv base) && "$$py" benchmarks/handover_bench.py --python "$$py" --shapes small,medium,large --storm 10000 --out out/bench/handover.json

bench-rebounds: sysdeps ## 10,000 small orders: does a job ever hold more than it said? Counted, not timed -> out/bench/rebounds.json
	py=$$(scripts/pyenv base) && "$$py" benchmarks/handover_rebounds.py --python "$$py" --shapes small,medium,large --out out/bench/rebounds.json

bench-vllm: sysdeps ## what the plugin lull-vllm costs and how fast it gives memory back -> out/bench/vllm.json
	"$$(scripts/pyenv full)" benchmarks/vllm/bench.py --out out/bench/vllm.json

bench-isolation: build sysdeps ## what yield and pace do for a real vLLM beside training -> out/isolation
	$(LULL) demo --engine vllm --study isolation --out out/isolation --python "$$(scripts/pyenv full)"

bench-proxy: build ## what the relay adds to the time of an event -> out/bench/proxy.json
	$(LULL) bench proxy --out out/bench/proxy.json

bench-peers: build ## Lull beside nginx, HAProxy, Caddy, LiteLLM, vllm-router and Portkey, which it installs -> out/bench/peers.json
	@scripts/sysdeps python3-venv || true
	$(LULL) bench peers --out out/bench/peers.json

bench-clients: build sysdeps ## what neutral load clients measure through Lull beside Lull's own figures, real vLLM on CPU -> out/bench/clients.json
	"$$(scripts/pyenv full)" benchmarks/clients/bench.py --lull bin/lull --aiperf "$$(scripts/pyenv clients)" --out out/bench/clients.json

bench-convergence: sysdeps ## training under a storm of orders against undisturbed training: five seeds, two models -> out/bench/convergence.json
	"$$(scripts/pyenv convergence)" benchmarks/convergence/bench.py --out out/bench/convergence.json

bench-uneven: sysdeps ## two ranks with unequal microbatches beside the same ones on both -> out/bench/uneven.json
	py=$$(scripts/pyenv base) && "$$py" benchmarks/uneven/bench.py --python "$$py" --out out/bench/uneven.json

bench-core: build ## one controller step with 1,000 live requests, and the idle sidecar -> out/bench/core.json
	$(LULL) bench core --out out/bench/core.json

gpu-check: sysdeps ## what Lull does on this machine's GPU, in ten minutes and without a network -> out/gpu/check.json (ARGS=--rehearse: tries the script on the CPU)
	"$$(scripts/pyenv base)" benchmarks/gpu/check.py --out out/gpu/check.json $(ARGS)

sysdeps:
	@scripts/sysdeps python3-venv gcc libc6-dev

clean: ## what the targets above left in this folder (never the cache of Python environments)
	rm -rf bin out trainer/python/build
