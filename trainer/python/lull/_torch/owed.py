"""An order without its ack, and what a thread that handles orders needs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lull._protocol import Ack, Budget

_NICER = 10
"""Steps of niceness between the threads that handle orders and the training thread."""


class Discard(BaseException):
    """Ends a microbatch from inside. Not an Exception, so that a model's own handlers let it pass."""


@dataclass
class Owed:
    """An order without its ack; times in seconds of the job's clock, or since the order came."""

    order: Budget
    reply: Callable[[Ack], None]
    started: float
    before: int
    """Bytes that were resident when it came."""
    until: float = 0.0
    """Seconds after `started` until which the running microbatch is left alone; 0: not at all."""
    began: float = 0.0
    """When the way that meets it began: `started`, or the end of a wait for a cheaper one."""
    planned: bool = False
    """Whether it was to be met by letting the microbatch finish."""
    freeing: float = 0.0
    emptied: bool = False
    held_back: bool = False
    points: int = 0
    ended: tuple[str, int] | None = None
    """How the microbatch under it ended and the samples undone, while the device still works off its queue."""

    def __post_init__(self) -> None:
        self.began = self.started

    @property
    def within(self) -> float:
        """The deadline, in seconds after `started`; 0 for none."""
        return self.order.within_us / 1e6


def prefer_this_thread() -> None:
    """Lets a thread that handles orders run before the training thread, where the system allows it.

    It sleeps but for a fraction of a millisecond an order; without the right to do this (root, or
    RLIMIT_NICE) orders wait a little longer when the cores are busy.
    """
    me = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) - _NICER)
