"""Which cores the server and Lull have, and which the load client: what a client is late by itself, it counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def split(cores: set[int]) -> tuple[set[int], set[int]]:
    """The server's and the client's: the client has the last, or half of more than three; one core is shared."""
    ordered = sorted(cores)
    own = max(1, len(ordered) // 2) if len(ordered) > 1 else 0
    return set(ordered[: len(ordered) - own]), set(ordered[len(ordered) - own :]) or set(ordered)


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
