"""Every test says what it needs: cpu, gpu or integration. An unsorted one fails the run."""

from __future__ import annotations

import pytest

_SORTS = {"cpu", "gpu", "integration"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unsorted = [item.nodeid for item in items if not _SORTS & {mark.name for mark in item.iter_markers()}]
    if unsorted:
        raise pytest.UsageError(f"tests without a mark, want one of {sorted(_SORTS)}: {', '.join(unsorted)}")
