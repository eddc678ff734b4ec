"""Which samples of a batch come next: all of them in turn, or those that no other rank has taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_SHORTEST_S, _LONGEST_S = 0.001, 0.02
"""Seconds between two looks of a rank that finds nothing to take."""

Fit = Callable[[int], int]
"""How many of so many samples the next microbatch takes."""


class Pieces(Protocol):
    """What a batch's loop over microbatches needs."""

    def next(self, fit: Fit) -> tuple[int, int] | None:
        """First and last + 1 sample of the next microbatch; None when the batch is over."""

    def done(self, samples: int) -> None:
        """So many samples of it are in the gradient."""


class Hand:
    """A batch of one's own, in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.finished = 0

    def next(self, fit: Fit) -> tuple[int, int] | None:
        left = self._size - self.finished
        return (self.finished, self.finished + fit(left)) if left else None

    def done(self, samples: int) -> None:
        self.finished += samples


@dataclass(frozen=True)
class Table:
    """What the ranks know of a shared batch. Its text is what the store holds."""

    untaken: tuple[tuple[int, int], ...]
    """Stretches of samples that nobody has, each as its first and last + 1; not empty ones."""
    finished: int = 0
    """Samples that are in some rank's gradient."""

    def text(self, writer: str) -> str:
        """`writer` is different each time: two ranks that take as much write different texts, and one of them fails."""
        return " ".join([writer, str(self.finished), *(f"{a}-{b}" for a, b in self.untaken)])

    @classmethod
    def read(cls, text: str) -> Table:
        _, finished, *stretches = text.split()
        pairs = (s.split("-") for s in stretches)
        return cls(tuple((int(a), int(b)) for a, b in pairs), int(finished))

    @property
    def left(self) -> int:
        return sum(b - a for a, b in self.untaken)

    def take(self, samples: int) -> tuple[tuple[int, int], Table]:
        """The first samples of the first stretch, and what is left."""
        (start, end), *others = self.untaken
        stop = min(start + samples, end)
        rest = ((stop, end),) if stop < end else ()
        return (start, stop), Table((*rest, *others), self.finished)


TAIL = 0.2
"""Part of a batch that is kept for the end, where ranks even out what their speeds were off."""


@dataclass(frozen=True)
class Part:
    """What one rank should take of a batch of `size` samples."""

    size: int
    share: float
    """Its part of the speed of all ranks."""
    fewest: int = 1
    """Samples of its smallest microbatch."""
    fixed: float = 0.0
    """Samples whose time a microbatch takes besides that of its own: what one more costs."""

    def wants(self, taken: int, left: int) -> int:
        """How many samples to take now, where it has taken so many and so many are left.

        First its share of the batch, as large as fits; of a batch whose tail is worth a microbatch more, less the
        tail. Then a share of what is left each time, so that pieces shrink and ranks finish within about two smallest
        microbatches of each other (guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers
        C-36, 1987, with shares by speed in place of 1/p), but nothing for which the fixed time is most of it.
        """
        mine = self.size * self.share
        due = math.ceil(mine * (1 - TAIL) if mine * TAIL >= self.fixed else mine)
        if taken < due:
            return max(due - taken, self.fewest)
        return max(math.ceil(left * self.share), math.ceil(self.fixed), self.fewest)


def cut(wanted: int, stretch: int, fewest: int) -> int:
    """So much of a stretch, but not so that fewer than `fewest` would be left of it."""
    some = min(wanted, stretch)
    return stretch if 0 < stretch - some < fewest else some


class SharedHand:
    """A batch that every rank was given, shared out through a text in the store that changes by compare and set."""

    def __init__(
        self,
        swap: Callable[[str, str], str],
        part: Part,
        *,
        rank: int,
        able: Callable[[], bool],
        idle: Callable[[float], bool],
    ) -> None:
        """`swap` compares and sets the text: of what was expected ("" for nothing yet) and what is desired it makes
        what is there. `able` says whether the smallest microbatch fits
        now. `idle` waits so many seconds and returns False when there is nothing to wait for any more."""
        self._swap, self._part, self._rank = swap, part, rank
        self._writes = 0
        self._able, self._idle = able, idle
        self._mine: tuple[int, int] | None = None
        self._unsaid = 0
        self.finished = 0
        """Samples that this rank has in its gradient."""
        self.idle_s = 0.0
        """Seconds without anything to take."""
        self._seen = self._swap("", Table(((0, part.size),)).text("new"))

    def next(self, fit: Fit) -> tuple[int, int] | None:
        pause = _SHORTEST_S
        while self._mine is None:
            table = Table.read(self._seen)
            if table.untaken and self._able():
                self._change(lambda now: self._take(now, fit))
                continue
            if self._unsaid:
                self._change(lambda now: now)
                continue
            if table.finished >= self._part.size:
                return None
            self._seen = self._swap("", self._seen)
            began = time.monotonic()
            if not self._idle(pause):
                return None
            self.idle_s += time.monotonic() - began
            pause = min(2 * pause, _LONGEST_S)
        start, stop = self._mine
        return start, start + fit(stop - start)

    def done(self, samples: int) -> None:
        assert self._mine is not None
        start, stop = self._mine
        self._mine = (start + samples, stop) if start + samples < stop else None
        self._unsaid += samples
        self.finished += samples

    def give_back(self) -> None:
        """Others may have what this rank took and has no memory for."""
        if self._mine is not None:
            mine = self._mine
            self._change(lambda now: Table((*now.untaken, mine), now.finished))
            self._mine = None

    def _take(self, now: Table, fit: Fit) -> Table:
        self._mine = None
        if not now.untaken:
            return now
        start, end = now.untaken[0]
        wanted = cut(self._part.wants(self.finished, now.left), end - start, self._part.fewest)
        self._mine, after = now.take(cut(fit(wanted), end - start, self._part.fewest))
        return after

    def _change(self, how: Callable[[Table], Table]) -> None:
        """Makes the store hold what `how` makes of what it holds, with what this rank has finished meanwhile."""
        while True:
            self._writes += 1
            now = Table.read(self._seen)
            after = how(Table(now.untaken, now.finished + self._unsaid)).text(f"{self._rank}.{self._writes}")
            there = self._swap(self._seen, after)
            if there == after:
                self._seen, self._unsaid = after, 0
                return
            self._seen = there
