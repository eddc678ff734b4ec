"""What the agent drives: the contract between the control channel and a training runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lull._messages import Ack, Budget, MemoryModel, Pace, Progress, Report

__all__ = ["HelloState", "Runtime"]


@dataclass(frozen=True)
class HelloState:
    """What a runtime says of itself when a connection opens; bytes unless said otherwise."""

    device: str
    floor: int
    floor_known: bool
    ceiling: int
    held: int
    baseline: int = 0
    min_budget: int = 0
    suspended: int = 0
    memory_model: MemoryModel | None = None
    progress: Progress | None = None
    memory: str = ""
    """Where activation memory comes from, for people; not on the wire."""


class Runtime(Protocol):
    """What the agent drives. Every method is called on the agent's thread, and none may block:
    while one runs, no order is read."""

    def hello(self) -> HelloState:
        """What is true now; called before each connection, and when the lease has ended."""

    def apply(self, order: Budget, reply: Callable[[Ack], None]) -> None:
        """Lowers or raises the ceiling at once and frees memory without waiting for the running
        operator. `reply` is called exactly once, from any thread, now or later."""

    def pace(self, pace: Pace) -> None:
        """A new duty cycle; a yield comes as duty 0. The runtime keeps its lease."""

    def drain(self) -> None:
        """Checkpoint and leave soon."""

    def lease_ended(self) -> None:
        """The sidecar is gone: go to the min budget, never above the last grant."""

    def report(self) -> Report:
        """What happened lately; called every report_s, and by report_soon on its caller's thread."""
