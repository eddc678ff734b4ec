"""What people are told of a connection: who answered and what was granted, or that nothing was.

Pure but for its log lines: times come in.
"""

from __future__ import annotations

import logging
from typing import Final

from lull._contract import HelloState

__all__ = ["PATIENCE_S", "Greeting", "say_bytes"]

PATIENCE_S: Final = 5.0
"""Seconds after a welcome in which the first budget should have come: a sidecar that knows the device and
the floor sends one at once."""

_log = logging.getLogger("lull")


def say_bytes(count: int) -> str:
    """A size as people read it: 512 B, 1.5 MiB."""
    if count < 1 << 10:
        return f"{count} B"
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    raise AssertionError


class Greeting:
    """One a connection; used on the agent's thread."""

    def __init__(self, socket: str, device: str, state: HelloState) -> None:
        self._socket = socket
        self._device = device
        self._state = state
        self._session: int | None = None
        self._until: float | None = None
        self._first: int | None = None
        self.waiting = True
        """Whether no budget has come yet."""

    def welcomed(self, session: int, now: float) -> None:
        """The sidecar said welcome."""
        self._session = session
        if self.waiting:
            self._until = now + PATIENCE_S
        elif self._first is not None:
            self._tell(session, self._first)

    def budget(self, bytes: int) -> None:
        """The first order of this connection was applied. Of lines that came together orders are taken first,
        so it may come before the welcome."""
        self.waiting, self._until, self._first = False, None, bytes
        if self._session is not None:
            self._tell(self._session, bytes)

    def _tell(self, session: int, bytes: int) -> None:
        state = self._state
        _log.info(
            "connected to %s (session %d) as %s: budget %s, floor %s, memory from %s",
            self._socket,
            session,
            self._device,
            say_bytes(bytes),
            say_bytes(state.floor) if state.floor_known else "not known yet",
            state.memory or state.device,
        )

    def look(self, now: float) -> None:
        """Says once that no budget came, if none did."""
        if self._until is None or now < self._until or not self._state.floor_known:
            return
        self._until = None
        _log.warning(
            "connected to %s (session %d), but no budget came within %g s: it may lend nothing to a device named %r "
            "(LULL_DEVICE), want a name from its lull.yaml; training stays at the min budget",
            self._socket,
            self._session,
            PATIENCE_S,
            self._device,
        )

    def refused(self, rule: str) -> None:
        """The sidecar does not take this trainer's device."""
        self.waiting, self._until = False, None
        _log.warning(
            "connected to %s, which refused the device %r (LULL_DEVICE): %s; training goes on alone "
            "with its own budget",
            self._socket,
            self._device,
            rule,
        )
