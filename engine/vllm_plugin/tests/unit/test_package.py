"""The package installs, with its entry point and its type marker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lull_vllm

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


def test_wheel_has_the_entry_point(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "lull_vllm", source / "lull_vllm")
    shutil.copy(ROOT / "pyproject.toml", source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("lull_vllm-*.whl")
    assert wheel.name.startswith(f"lull_vllm-{lull_vllm.__version__}-py3")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (points,) = [name for name in names if name.endswith("entry_points.txt")]
        text = files.read(points).decode()
    assert text.split() == ["[vllm.general_plugins]", "lull", "=", "lull_vllm:register"]
    assert "lull_vllm/py.typed" in names
    assert sum(name.endswith(".py") for name in names) == len(
        list((ROOT / "lull_vllm").glob("*.py"))
    )
