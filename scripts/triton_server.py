"""Serve models that hold memory by a real Triton on 127.0.0.1, under explicit model control.

python scripts/triton_server.py FOLDER PORT METRICS_PORT NAME=MIB[:loaded] ...

Each model holds MIB of anonymous memory while it is loaded, and answers text_input by itself. The server is the one
inside the nvidia-pytriton distribution (2.51 in 0.7.0), which is in the environment of `scripts/pyenv triton`. The
process becomes the server.
"""

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

MODEL = '''
import json

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.held = b"\\x01" * (int(parameters["mib"]["string_value"]) << 20)

    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("text_output", text)]))
        return answers
'''

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 0
input [{{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }}]
output [{{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
parameters {{ key: "mib" value {{ string_value: "{mib}" }} }}
"""


def server() -> Path:
    """The folder of the server inside the pytriton package, which is never imported."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        sys.exit("triton_server: nvidia-pytriton is not installed; run it with the python of `scripts/pyenv triton`")
    return Path(spec.origin).parent / "tritonserver"


def backends(triton: Path, folder: Path) -> None:
    """The python backend as the server looks for it: the package keeps a stub for each version of Python apart."""
    python = folder / "python"
    python.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = [*(triton / "backends/python").iterdir(), *(triton / "python_backend_stubs" / version).iterdir()]
    for part in parts:
        if part.is_file():
            shutil.copy(part, python / part.name)


def repository(folder: Path, models: dict[str, int]) -> None:
    """One model a folder, version 1."""
    for name, mib in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(name=name, mib=mib))


def wanted(specs: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The MiB of each model, and the server's arguments for those that are loaded at its start."""
    models: dict[str, int] = {}
    loaded: list[str] = []
    for spec in specs:
        found = re.fullmatch(r"([\w.-]+)=(\d+)(:loaded)?", spec)
        if found is None:
            sys.exit(f"triton_server: got {spec!r}, want NAME=MIB or NAME=MIB:loaded; no server is started")
        models[found[1]] = int(found[2])
        if found[3]:
            loaded.append(f"--load-model={found[1]}")
    return models, loaded


def main(folder: Path, port: str, metrics: str, *specs: str) -> None:
    models, loaded = wanted(specs)
    triton = server()
    backends(triton, folder / "backends")
    repository(folder / "repository", models)
    # The stub of a model finds its packages by the first python3 in PATH, and the libpython that it was linked with.
    libraries = [str(triton.parent.parent / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = dict(os.environ, PATH=path, LD_LIBRARY_PATH=":".join(libraries))
    binary = str(triton / "bin/tritonserver")
    os.execve(
        binary,
        [
            binary,
            f"--model-repository={folder / 'repository'}",
            f"--backend-directory={folder / 'backends'}",
            "--model-control-mode=explicit",
            *loaded,
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={metrics}",
            "--metrics-interval-ms=500",
            "--exit-timeout-secs=2",
        ],
        env,
    )


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit("triton_server: want FOLDER PORT METRICS_PORT NAME=MIB[:loaded] ...; no server is started")
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
