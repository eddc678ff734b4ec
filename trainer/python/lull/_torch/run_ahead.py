"""Bounds how far Python is ahead of a GPU: an order can free only what no queued kernel will touch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Event(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class RunAhead:
    """A ring of events, one a block. Training thread only."""

    def __init__(self, depth: int, make: Callable[[], Event]) -> None:
        """`depth` blocks may be queued; 0 bounds nothing."""
        self._depth = depth
        self._make = make
        self._queued: deque[Event] = deque()

    def boundary(self) -> None:
        """A block is about to be queued: waits until fewer than depth others are."""
        if not self._depth:
            return
        if len(self._queued) < self._depth:
            event = self._make()
        else:
            event = self._queued.popleft()
            event.synchronize()
        event.record()
        self._queued.append(event)
