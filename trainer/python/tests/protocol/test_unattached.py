"""lull.run says at the end of a script that was told of a sidecar that it never attached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lull import run
from lull._arena import UNATTACHED

_LIB = Path(__file__).parents[2]
_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)"


def _line(told: str) -> str:
    return (
        f"lull.run: lull.attach was never called in this process, so it ran as without Lull and {told} was not used; "
        "want elastic = lull.attach(model, optimizer), and elastic.backward(batch, loss_fn) in place of "
        "loss.backward() (a launcher whose processes attach is right)\n"
    )


@pytest.mark.cpu
def test_only_who_was_told_of_a_sidecar_is_asked_why() -> None:
    assert run.unattached({}, 7) == ""
    assert run.unattached({"LULL_SOCKET": "", "LULL_DEVICE": ""}, 7) == ""
    assert run.unattached({"LULL_DEVICE": "host0"}, 7) == "7 " + _line("LULL_DEVICE=host0")
    both = {"LULL_SOCKET": "/s", "LULL_DEVICE": "host0"}
    assert run.unattached(both, 7) == "7 " + _line("LULL_SOCKET=/s LULL_DEVICE=host0")


@pytest.mark.integration
@pytest.mark.skipif(run.locate(os.environ) is None, reason="no arena and no compiler")
@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("print(1)", 0, True),
        ("raise SystemExit(3)", 3, True),
        ("1 / 0", 1, True),
        (_CHILD, 0, True),
        (f"import os; del os.environ[{UNATTACHED!r}]", 0, False),
        ("import os; os.fork() and os.wait()", 0, True),
    ],
    ids=["end", "exit", "error", "child", "attached", "fork"],
)
def test_process_is_told_once_at_its_end_and_its_children_are_not(script: str, code: int, told: bool) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LULL_")}
    done = subprocess.run(
        [sys.executable, "-m", "lull.run", "-c", script],
        env={**env, "PYTHONPATH": str(_LIB), "LULL_SOCKET": "/s"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines(keepends=True) if "never called" in line]
    assert lines == [_line("LULL_SOCKET=/s")] * told
