"""Sorts the tests: each is cpu or integration, and one that is neither fails the collection."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(m) for m in ("cpu", "integration")):
            raise pytest.UsageError(f"{item.nodeid}: want the marker cpu or integration")
