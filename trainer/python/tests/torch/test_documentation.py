"""docs/TRAINING.md names every refusal in the words of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

PACKAGE = Path(__file__).parents[2]
DOCUMENT = PACKAGE.parents[1] / "docs" / "TRAINING.md"
RAISED = {"RuntimeRefusal", "SavedTensorEdited", "NoGradient"}


def text(node: ast.AST) -> str:
    """A literal's text, with an ellipsis for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def refusals() -> Iterator[str]:
    for path in sorted((PACKAGE / "lull").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args:
                yield text(node.args[0])


def test_every_refusal_says_what_becomes_of_the_work() -> None:
    found = list(refusals())
    assert len(found) > 15
    for refusal in found:
        end = refusal.rpartition("; ")[2]
        assert end in ("nothing is attached", "nothing was trained", "the microbatch is undone", "…"), refusal


@pytest.mark.parametrize("refusal", list(refusals()))
def test_refusal_is_in_the_documentation(refusal: str) -> None:
    assert f"| {refusal.partition(';')[0]} |" in DOCUMENT.read_text(encoding="utf-8")
