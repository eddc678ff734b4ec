"""The trainer's end of the control channel: one thread that drives a Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lull._config import Config
from lull._protocol import Ack, Budget, MemoryModel, Pace, Progress, Report

__all__ = ["Agent", "HelloState", "Runtime"]


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


class Runtime(Protocol):
    """What the agent drives. Every method is called on the agent's thread, and none may block:
    while one runs, no order is read."""

    def hello(self) -> HelloState:
        """What is true now; called before each connection."""

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
        """What happened lately; called every report_s."""


class Agent:
    """Keeps one connection to the sidecar and drives `runtime` with what comes."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime

    @property
    def connected(self) -> bool:
        """Whether a sidecar has said welcome on the connection that is open now."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the thread; it connects, and connects again whenever the sidecar is gone."""
        raise NotImplementedError

    def close(self, reason: str = "done") -> None:
        """Says bye, ends the thread and waits for it. Harmless when repeated."""
        raise NotImplementedError

    def request_floor(self, bytes: int, timeout: float) -> bool:
        """Asks for a floor of `bytes` and waits up to `timeout` seconds for the answer.

        True when it was granted, and when no sidecar has ever been seen (nobody to ask);
        False when it was refused, when the time is over and while the sidecar is gone.
        Never call it on the agent's thread (from a Runtime method).
        """
        raise NotImplementedError

    def report_soon(self) -> None:
        """Sends a report now, from the caller's thread; call it when something changed."""
        raise NotImplementedError
