"""A floor that rises after the dry step: asked for before it counts as the job's own.

Interpreter garbage, workspaces that a library makes late and what the user's loop keeps all end up outside
the pool. What is above the floor stands in the way of every order, since the device must show the job
within floor and budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from lull._torch.dry import NOISE, Floor

_log = logging.getLogger("lull")

PATIENCE_S = 0.5
"""Seconds that training waits for the sidecar's answer."""


class FloorWatch:
    """Looks between batches; call check on the training thread, outside an optimizer step."""

    def __init__(self, outside: Callable[[], int], ask: Callable[[int, float], bool]) -> None:
        self._outside = outside
        """Bytes of the job outside the pool, beyond the baseline."""
        self._ask = ask
        self._refused = 0

    def check(self, floor: Floor) -> Floor:
        """The floor in force: the same, or a higher one that was granted.

        A refusal is logged once for each amount; the ledger then counts the excess as held.
        """
        now = self._outside()
        if now + floor.step_peak + NOISE // 2 <= floor.bytes:
            return floor
        wanted = now + floor.step_peak + NOISE
        if wanted <= self._refused:
            return floor
        if self._ask(wanted, PATIENCE_S):
            self._refused = 0
            return replace(floor, bytes=wanted)
        self._refused = wanted + NOISE
        _log.warning(
            "floor: %d bytes are held outside the pool, want %d, and the sidecar has no room for a floor of %d; "
            "the excess counts as activation memory",
            now,
            floor.bytes - floor.step_peak,
            wanted,
        )
        return floor

    def claim(self, floor: Floor, extra: int, pause: Callable[[], bool]) -> Floor:
        """The floor with `extra` bytes more, granted before they are taken.

        Training waits for it as it waits for a sample's memory; pause waits a moment and says whether to go on
        asking. Without a sidecar there is nobody to wait for.
        """
        wanted = floor.bytes + extra
        told = False
        while not self._ask(wanted, PATIENCE_S):
            if not told:
                told = True
                _log.warning(
                    "floor: %d bytes more are needed for parameters that are trained from now on; the sidecar has no "
                    "room for a floor of %d yet, and training waits for it",
                    extra,
                    wanted,
                )
            if not pause():
                break
        return replace(floor, bytes=wanted)
