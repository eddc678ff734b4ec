"""The arena and its cap are the process's: what one test attached must not meet the orders of the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import models


@pytest.fixture(autouse=True)
def detach() -> Iterator[None]:
    """Closes whatever a test attached, also where it failed first."""
    yield
    while models.attached:
        models.attached.pop().close()
