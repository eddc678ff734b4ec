"""A loop that trains past Lull: it attached, and steps the optimizer without elastic.backward."""

from __future__ import annotations

import atexit
import logging
import os
from typing import Final

_log = logging.getLogger("lull")

STEPS: Final = 3
"""Optimizer steps after which a loop that never called elastic.backward is taken for one that never will."""


class Unused:
    """Warns once; of one job. Training thread only, but for the end of the process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._steps = 0
        self._over = False
        """Whether backward was called, or the warning given."""
        atexit.register(self._at_exit)

    def called(self) -> None:
        """elastic.backward was called: nothing is wrong."""
        self._over = True

    def stepped(self) -> None:
        """The optimizer made a step."""
        self._steps += 1
        if self._steps >= STEPS:
            self._say(f"optimizer.step ran {self._steps} times")

    def close(self) -> None:
        """The job detaches."""
        atexit.unregister(self._at_exit)
        if self._steps:
            self._say(f"the job detaches after {self._steps} optimizer steps")

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and self._steps:
            self._say(f"the process ends after {self._steps} optimizer steps")

    def _say(self, when: str) -> None:
        if self._over:
            return
        self._over = True
        _log.warning(
            "attach: %s and elastic.backward was never called, so this job holds its activation memory as without "
            "Lull and can give nothing back; want elastic.backward(batch, loss_fn) in place of loss.backward()",
            when,
        )
