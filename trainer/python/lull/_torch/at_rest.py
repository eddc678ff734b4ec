"""The end of a process whose ranks met over gloo: gloo's workers come to rest before Python ends.

A worker lets go of a collective's tensors a moment after whoever waited for it has gone on, and takes the interpreter's
lock for that. Where the interpreter ends in this moment, Python ends the worker's thread inside a destructor, and so
the process: "terminate called without an active exception", and a job that was done looks failed (PyTorch 2.13,
pytorch/pytorch#190489, with Lull or without). So the lock is given away at exit, while Python still runs, until no
worker is at work.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")

WORKER: Final = "pt_gloo"
"""How the names of gloo's workers begin."""

_LOOK_S: Final = 0.002
"""Seconds between looks; the lock is free meanwhile."""

_LOOKS: Final = 3
"""Looks in a row that must find all at rest: one that waits for the lock has it after the first."""

_LONGEST_S: Final = 5.0
"""Seconds after which the process ends all the same."""


def at_work(tasks: Path = _TASKS) -> bool:
    """Whether one of gloo's workers runs or is ready to. One that has nothing to do sleeps."""
    for stat in tasks.glob("*/stat"):
        try:
            _, _, text = stat.read_text(errors="replace").partition("(")
        except OSError:  # it has ended
            continue
        name, _, rest = text.rpartition(")")
        if name.startswith(WORKER) and rest.split()[0] != "S":
            return True
    return False


def wait(
    busy: Callable[[], bool] = at_work,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until gloo's workers are at rest."""
    until, quiet = clock() + _LONGEST_S, 0
    while quiet < _LOOKS and clock() < until:
        sleep(_LOOK_S)
        quiet = 0 if busy() else quiet + 1


def wait_at_exit() -> None:
    """Once a process, however often it is asked."""
    atexit.unregister(wait)
    atexit.register(wait)
