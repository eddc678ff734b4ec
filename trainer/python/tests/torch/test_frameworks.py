"""Runs tests/integrations with the environment that has the frameworks, in a process that lull.run started."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]


def python() -> str:
    """LULL_TEST_PYTHON_FULL (`scripts/pyenv full`), or this one where it has the frameworks."""
    named = os.environ.get("LULL_TEST_PYTHON_FULL", "")
    return named or (sys.executable if all(map(find_spec, ("transformers", "accelerate", "peft", "lightning"))) else "")


@pytest.mark.integration
@pytest.mark.skipif(not python(), reason="needs transformers: LULL_TEST_PYTHON_FULL=$(scripts/pyenv full)")
def test_frameworks_train_as_without_lull() -> None:
    done = subprocess.run(
        [python(), "-m", "lull.run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integrations"],
        cwd=PACKAGE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]),
            "LULL_SOCKET": "",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
