"""Datagrams of one byte between the engine and the sidecar: look at the page.

A bell carries no state: one that is lost is made up for by the next look, at most a beat later.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

BOUND = b"b"  # sidecar → engine: the bound page changed
SHORT = b"s"  # engine → sidecar: an allocation fell short
CONFIRMED = b"c"  # engine → sidecar: the requested epoch is confirmed

_SHORT_EVERY_S = 0.01  # a shortage that lasts; the sidecar reads the page about as often


class Doorbell:
    """Receives at own and rings at peer. ring never waits and never fails."""

    def __init__(self, own: Path, peer: Path) -> None:
        self._own = own
        self._peer = str(peer)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A socket of its own for ringing: a receive timeout must not become a send timeout.
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._short, self._short_at = -1, 0.0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(own)
        self._socket.bind(str(own))
        os.chmod(own, 0o600)

    def wait(self, timeout: float) -> bool:
        """Returns whether a bell rang within timeout seconds; bells that queued up count as one."""
        self._socket.settimeout(timeout)
        try:
            self._socket.recv(16)
            self._socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)
        except TimeoutError:
            return False
        return True

    def ring(self, what: bytes) -> None:
        """Rings at the sidecar, if there is one."""
        with contextlib.suppress(OSError):
            self._out.sendto(what, self._peer)

    def short(self, bytes_short: int, now: float) -> None:
        """Rings at once for news of a shortage, and now and then while it stays.

        An engine whose every request waits spins through its steps, and must not ring as often.
        """
        if bytes_short != self._short or now - self._short_at >= _SHORT_EVERY_S:
            self._short, self._short_at = bytes_short, now
            self.ring(SHORT)

    def enough(self) -> None:
        """The shortage is over: the next one is news."""
        self._short = -1

    def wake(self) -> None:
        """Ends a wait of this object from another thread."""
        with contextlib.suppress(OSError):
            self._out.sendto(BOUND, str(self._own))

    def close(self) -> None:
        self._socket.close()
        self._out.close()
        with contextlib.suppress(OSError):
            os.unlink(self._own)
