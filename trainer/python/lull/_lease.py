"""How long a grant holds without a sidecar, and when to look for one again. Pure: times come in."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Lease", "backoff"]


class Lease:
    """The time for which the last grant holds, counted from the last line that was heard.

    Before the first `start` there is no lease: a trainer that has never seen a sidecar keeps its
    own budget.
    """

    def __init__(self) -> None:
        self.started = False
        self.heard_at = 0.0
        self.seconds = 0.0
        self._ended = False

    def start(self, seconds: float, now: float) -> None:
        """A sidecar has said welcome."""
        self.started, self._ended = True, False
        self.seconds, self.heard_at = seconds, now

    def heard(self, now: float) -> bool:
        """A line has come: a lease that had ended runs again. Whether it had: what it took away comes back by an order
        only."""
        ended, self.heard_at, self._ended = self._ended, now, False
        return ended

    def ends(self, now: float) -> bool:
        """True once for each silence, when the lease is over."""
        if not self.started or self._ended or now - self.heard_at < self.seconds:
            return False
        self._ended = True
        return True

    def cap(self, pause: float, now: float) -> float:
        """A pause of at most `pause` seconds that does not sleep through the end of the lease."""
        if not self.started or self._ended:
            return pause
        return min(pause, max(0.001, self.heard_at + self.seconds - now))


def backoff(first_s: float, max_s: float, failures: int, rng: Callable[[], float]) -> float:
    """Seconds before the next attempt: doubled with each failure up to max_s, half of it random,
    so that many trainers do not come back at once."""
    longest = min(max_s, first_s * 2.0 ** min(failures, 30))
    return longest * (0.5 + 0.5 * rng())
