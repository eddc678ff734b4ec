"""What the scheduler's steps did, noted on the way to the workers: no lock, and hardly a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Steps:
    """Written on the scheduler's thread alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = 0.0
        self.newest = 0  # the newest step scheduled that touches blocks
        self.done = 0  # the newest of them whose output came back
        self.tokens = 0  # of the newest step
        self.took_s = 0.0  # the newest step whose output came back
        self.preemptions = 0
        self.fell_short = False  # an allocation of the newest step was refused for want of blocks
        self.short = 0  # the blocks that it lacked
        self.owed = False  # the page does not show the newest step yet

    def begin(self) -> None:
        """A step is about to be scheduled."""
        self._began = self._clock()
        self.fell_short = False

    def scheduled(self, output: Any) -> None:
        """output is vLLM's SchedulerOutput."""
        self.tokens = output.total_num_scheduled_tokens
        self.newest += self.tokens > 0
        self.preemptions += len(output.preempted_req_ids or ())
        self.short = 0
        self.owed = True

    def came_back(self, output: Any) -> None:
        """The workers' answer to that SchedulerOutput has been processed."""
        self.done += output.total_num_scheduled_tokens > 0
        self.took_s = self._clock() - self._began
