"""Loops as people write them, before and after: five lines at most differ, and the same weights come of both."""

from __future__ import annotations

import difflib
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.integration

LOOPS = Path(__file__).parent / "loops"
PACKAGE = Path(__file__).parents[2]
NAMES = ["pure", "accelerated", "recipe"]


def changed(name: str) -> list[str]:
    """Lines of the two scripts that differ, as diff writes them."""
    before, after = ((LOOPS / f"{name}{end}.py").read_text().splitlines() for end in ("", "_elastic"))
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---") and line.strip("+-")]


@pytest.mark.parametrize("name", NAMES)
def test_five_lines_are_changed_at_most_and_the_documentation_shows_them(name: str) -> None:
    assert 0 < len([line for line in changed(name) if line[0] == "+"]) <= 5
    document = (PACKAGE.parents[1] / "docs" / "TRAINING.md").read_text()
    for line in changed(name):
        assert f"\n{line}\n" in document, line


def run(monkeypatch: pytest.MonkeyPatch, script: str, weights: Path) -> None:
    """Runs a script here, told of no sidecar, and detaches what it attached."""
    monkeypatch.setattr(sys, "argv", [script, str(weights)])
    monkeypatch.syspath_prepend(str(LOOPS))
    monkeypatch.setenv("LULL_SOCKET", "")
    monkeypatch.setenv("LULL_BUDGET", "64MiB")
    found = runpy.run_path(str(LOOPS / script))
    if "elastic" in found:
        assert found["elastic"].stats.batches > 0
        found["elastic"].close()


@pytest.mark.parametrize("name", NAMES)
def test_script_trains_alone_to_the_weights_of_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run(monkeypatch, f"{name}.py", tmp_path / "plain")
    run(monkeypatch, f"{name}_elastic.py", tmp_path / "elastic")
    assert ("lull_budget_mib=64" in capsys.readouterr().err) == (name == "pure"), "its bar shows Lull's figures"
    plain, elastic = (torch.load(tmp_path / way) for way in ("plain", "elastic"))
    assert plain.keys() == elastic.keys()
    for key, want in plain.items():
        torch.testing.assert_close(elastic[key], want, rtol=1e-4, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")
