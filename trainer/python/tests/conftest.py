"""Every test says what it needs: cpu, gpu or integration. An unsorted one fails the run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_SORTS = {"cpu", "gpu", "integration"}

# How long an example takes, or is drawn, says how busy the machine is. (In CI Hypothesis' own profile says so too.)
settings.register_profile("lull", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("lull")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unsorted = [item.nodeid for item in items if not _SORTS & {mark.name for mark in item.iter_markers()}]
    if unsorted:
        raise pytest.UsageError(f"tests without a mark, want one of {sorted(_SORTS)}: {', '.join(unsorted)}")
