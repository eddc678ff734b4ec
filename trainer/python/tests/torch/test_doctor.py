"""The doctor's command on this machine: it measures, and says so in text and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PACKAGE = Path(__file__).parents[2]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lull.doctor", *args],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "LULL_SOCKET": "", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_memory_is_measured_and_comes_back() -> None:
    done = run("--json")
    found = {f["what"]: f for f in map(json.loads, done.stdout.splitlines())}
    assert found["torch"]["how"] == "ok", done.stderr
    for way in ("memory, with lull.run", "memory, without lull.run"):
        if way in found:  # the second only where the arena can be made
            assert found[way]["how"] == "ok", found[way]
            assert "came back in" in found[way]["seen"]
    assert found["socket"]["how"] == "note"
    bad = [f for f in found.values() if f["how"] == "bad"]
    assert done.returncode == (1 if bad else 0)


def test_what_is_wrong_is_printed_with_its_fix(tmp_path: Path) -> None:
    done = run(LULL_SOCKET=str(tmp_path))
    assert done.returncode == 1
    assert f"bad   socket: {tmp_path} is no socket\n      fix: set LULL_SOCKET to the sidecar's socket" in done.stdout
