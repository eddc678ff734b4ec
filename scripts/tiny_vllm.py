"""Serve a tiny Llama of random weights on a stock vLLM, with the plugin lull-vllm importable beside it.

python scripts/tiny_vllm.py --work DIR --port PORT [--layers N ... --dtype T] [-- VLLM ARGUMENTS]

Makes the model in DIR/model and a distribution of engine/vllm_plugin in DIR/site, as `pip install` would, and becomes
the server: the process that was started is the server's. LULL_VLLM=0 in the environment keeps the plugin out.
"""

import argparse
import os
import sys
from pathlib import Path

import make_tiny_llama

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "engine" / "vllm_plugin"
ENTRY_POINT = "[vllm.general_plugins]\nlull = lull_vllm:register\n"
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def make_site(directory: Path) -> Path:
    """What importlib.metadata needs to find the plugin's entry point."""
    info = directory / "lull_vllm-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lull-vllm\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for model and site")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--name", default="tiny", help="name of the served model")
    make_tiny_llama.add_shape(parser)
    parser.add_argument("rest", nargs="*", help="arguments of vLLM, after --")
    args = parser.parse_args()
    model, site = args.work / "model", make_site(args.work / "site")
    make_tiny_llama.write(model, make_tiny_llama.shape_of(args))
    path = [str(site), str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(path)}
    module = ["-m", "vllm.entrypoints.openai.api_server"]
    served = ["--model", str(model), "--served-model-name", args.name, "--dtype", args.dtype]
    listen = ["--host", "127.0.0.1", "--port", str(args.port)]
    os.execve(sys.executable, [sys.executable, *module, *served, *listen, *args.rest], environ)


if __name__ == "__main__":
    main()
