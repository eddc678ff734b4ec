"""Training yields compute: a duty cycle kept at block boundaries."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lull._protocol import Pace

_LONGEST = 0.25
"""Seconds of one pause, so that a new pace is seen soon."""


class Pacer:
    """set and nudge on any thread, gate on the training thread."""

    def __init__(self, clock: Callable[[], float], wanted: Callable[[], bool]) -> None:
        """wanted says whether an order needs the training thread: memory goes before compute."""
        self._clock = clock
        self._wanted = wanted
        self._changed = threading.Condition()
        self._duty = 1.0
        self._until: float | None = None
        self._worked_since = clock()
        self._paused_s = 0.0
        self._paused_at: float | None = None
        self._closed = False

    def working(self) -> float:
        """A clock in seconds that stands still during pauses: what work took is a difference of two. Any thread."""
        with self._changed:
            now = self._clock() if self._paused_at is None else self._paused_at
            return now - self._paused_s

    @property
    def pausing(self) -> bool:
        """Whether the training thread pauses now. Any thread."""
        return self._paused_at is not None

    def set(self, pace: Pace) -> None:
        """A new duty cycle; it ends with its lease."""
        with self._changed:
            self._duty = pace.duty
            self._until = self._clock() + pace.lease_ms / 1e3 if pace.lease_ms else None
            self._changed.notify_all()

    def nudge(self) -> None:
        """wanted may have become true."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Lets a waiting training thread go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _now(self) -> float:
        if self._until is not None and self._clock() >= self._until:
            self._duty, self._until = 1.0, None
        return self._duty

    def gate(self) -> None:
        """At a block boundary: pauses as long as the duty cycle asks after the work since the last one, or until
        an order needs this thread."""
        if self._duty >= 1.0:
            self._worked_since = self._clock()
            return
        with self._changed:
            worked = self._clock() - self._worked_since
            self._paused_at = paused_at = self._clock()
            try:
                while (duty := self._now()) < 1.0 and not self._closed and not self._wanted():
                    due = worked * (1 / duty - 1) if duty > 0 else float("inf")
                    left = due - (self._clock() - paused_at)
                    if left <= 0:
                        break
                    self._changed.wait(min(left, _LONGEST))
            finally:  # a signal's handler may raise in the wait
                self._worked_since = self._clock()
                self._paused_s += self._worked_since - paused_at
                self._paused_at = None
