"""Sorts the tests: each is cpu or integration, and one that is neither fails the collection."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# How long an example takes, or is drawn, says how busy the machine is. (In CI
# Hypothesis' own profile says so too.)
settings.register_profile("lull", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("lull")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(m) for m in ("cpu", "integration")):
            raise pytest.UsageError(f"{item.nodeid}: want the marker cpu or integration")
