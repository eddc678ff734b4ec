"""What scripts/triton_server.py says to a call that it cannot serve; e2e/triton_test.go runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "triton_server.py"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["8000"], "triton_server: want FOLDER PORT METRICS_PORT NAME=MIB[:loaded] ...; no server is started\n"),
        (
            ["8000", "8002", "large=1GiB"],
            "triton_server: got 'large=1GiB', want NAME=MIB or NAME=MIB:loaded; no server is started\n",
        ),
        (
            ["8000", "8002", "large=1:later"],
            "triton_server: got 'large=1:later', want NAME=MIB or NAME=MIB:loaded; no server is started\n",
        ),
        (
            ["8000", "8002", "large=1"],
            "triton_server: nvidia-pytriton is not installed; run it with the python of `scripts/pyenv triton`\n",
        ),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path: Path, args: list[str], said: str) -> None:
    # Without site packages: there is no pytriton, whatever this Python has.
    call = [sys.executable, "-S", "-E", str(SCRIPT), str(tmp_path), *args]
    got = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    assert (got.returncode, got.stderr) == (1, said)
    assert not list(tmp_path.iterdir())
