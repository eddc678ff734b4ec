"""Many threads at once, under the thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from vmm_rig import HERE, compiler

pytestmark = [pytest.mark.integration, pytest.mark.skipif(compiler() is None, reason="no C compiler")]

CSRC = HERE.parent.parent / "csrc"


def _build(folder: Path, *flags: str) -> Path | None:
    cc = compiler()
    assert cc is not None
    target = folder / "hammer"
    sources = [HERE / "hammer.c", HERE / "fake_driver.c", CSRC / "vmm.c"]
    done = subprocess.run(
        [cc, "-g", "-O1", *flags, "-pthread", "-o", str(target), *map(str, sources), "-ldl"],
        capture_output=True,
        check=False,
    )
    return target if done.returncode == 0 else None


def test_threads_meet_no_race_and_no_block_twice(tmp_path: Path) -> None:
    """Where the compiler has no sanitizer the same threads run without it: overlaps and leaks still show."""
    made = _build(tmp_path, "-fsanitize=thread") or _build(tmp_path)
    assert made is not None
    done = subprocess.run([str(made)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
