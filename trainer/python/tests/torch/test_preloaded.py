"""Runs the tests of preloaded/ in a process that lull.run started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(p.name for p in (HERE / "preloaded").glob("test_*.py"))


@pytest.mark.integration
@pytest.mark.skipif(bool(os.environ.get("LULL_ARENA")), reason="already in such a process")
@pytest.mark.parametrize("name", FILES)
def test_passes_with_the_native_arena(name: str) -> None:
    package = HERE.parent.parent
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lull.run",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"tests/torch/preloaded/{name}",
        ],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), "LULL_SOCKET": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
