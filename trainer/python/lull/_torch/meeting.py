"""Where the ranks of a job meet: the store of their process group.

Before a batch's gradients are added up each rank says how it fared, and hears how the others did. So no rank enters a
collective that another will not enter: one that failed is named at once, one that is slow is waited for as long as it
gets on, and one that died shows no sign of life.

A thread of its own gives the signs of life; everything else runs on the training thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch

from lull._errors import RankError

BEAT_S: Final = 1.0
"""Seconds between two signs of life."""

SILENT_S: Final = 30.0
"""Seconds without one after which a rank is taken for dead: many beats, since a machine may be overloaded, and a
library may keep the interpreter's lock."""

_LOOK_S: Final = 0.5
"""Seconds between looks at the others while one waits."""

_SHORTEST_S, _LONGEST_S = 0.0002, 0.005
"""Seconds between two questions whether all have come."""

_BROKEN_S: Final = 4.0
"""Seconds in which the ranks find out who is gone after a collective broke: some beats."""

_LEFT: Final = "left"

T = TypeVar("T")


class Meeting:
    """One rank's seat. Steps are numbered alike on every rank."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world: int,
        *,
        stuck_s: float,
        per_batch: int = 1,
        silent_s: float = SILENT_S,
        beat_s: float = BEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` holds nothing yet but what other seats of this meeting say. `stuck_s` is how long a rank that lives
        may do nothing. A batch takes `per_batch` steps."""
        self.rank, self.world = rank, world
        self._per_batch = per_batch
        self.silent_s, self._stuck_s, self._beat_s = silent_s, stuck_s, beat_s
        self._clock = clock
        self.pausing: Callable[[], bool] = lambda: False
        """Whether this rank pauses on purpose."""
        self._store = store
        self._moved = 0
        self._watched: dict[int, tuple[str, float, str, float]] = {}
        """By rank: its last beat and the seconds without another, its last progress and the seconds without more. Only
        those count in which this rank looked: a machine that stood still kills nobody."""
        self._looked = clock()
        self._over = threading.Event()
        self._pid = os.getpid()
        self._say_it_lives(0)
        self._thread = threading.Thread(target=self._beat, name="lull-rank", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def swap(self, key: str, expected: str, desired: str) -> str:
        """Compare and set: what the key holds afterwards. "" stands for a key that is not there."""
        held: bytes = self._ask(lambda: self._store.compare_set(key, expected, desired))
        return held.decode()

    def forget(self, key: str) -> None:
        """Nobody needs a key any more."""
        self._ask(lambda: self._store.delete_key(key))

    def got_on(self) -> None:
        """This rank computes, or waits on purpose."""
        self._moved += 1

    def meet(self, step: int, words: str) -> list[str]:
        """Says `words`, and waits for those of all ranks, by rank. Raises RankError for one that failed or is gone."""
        self._ask(lambda: self._store.set(_verdict(step, self.rank), "+" + words))
        keys = [_verdict(step, rank) for rank in range(self.world)]
        pause = _SHORTEST_S
        while not self._has(*keys):  # a wait with a timeout would print a warning each time
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
            self.look_now_and_then(step)
        said = [found.decode() for found in self._ask(lambda: self._store.multi_get(keys))]
        failed = {rank: text[1:] for rank, text in enumerate(said) if text.startswith("-")}
        if failed:
            raise RankError(
                (*failed,), f"failed in batch {self._batch(step)} ({'; '.join(failed.values())}), want all to end it"
            )
        self._ask(lambda: self._store.delete_key(_verdict(step - 1, self.rank)))
        return [text[1:] for text in said]

    def fail(self, step: int, error: BaseException) -> None:
        """This rank cannot end its batch: whoever waits for it is told so."""
        words = f"{type(error).__name__}: {error}"[:500]
        try:
            self._store.set(_verdict(step, self.rank), "-" + words)
            self._store.set(_broken(step, self.rank), "1")
        except RuntimeError:
            return  # nobody can be told

    def look_now_and_then(self, step: int) -> None:
        """Call it often while waiting."""
        if self._clock() - self._looked >= _LOOK_S:
            self.look(step)

    def look(self, step: int) -> None:
        """Raises RankError where a rank that has not said how this batch went failed, left, died or is stuck."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, 2 * _LOOK_S), now
        for rank in range(self.world):
            if rank == self.rank or self._has(_verdict(step, rank)):
                continue
            life = self._life(rank)
            if life == _LEFT:
                raise RankError(
                    (rank,), f"has closed its handle or ended, want all {self.world} ranks in batch {self._batch(step)}"
                )
            beat, _, moved = life.partition(" ")
            before = self._watched.get(rank, ("", 0.0, "", 0.0))
            quiet = before[1] + passed if before[0] == beat else 0.0
            still = before[3] + passed if before[2] == moved else 0.0
            self._watched[rank] = (beat, quiet, moved, still)
            if beat and quiet > self.silent_s:
                raise RankError(
                    (rank,),
                    f"no sign of life for {quiet:.0f} s, want all {self.world} ranks in batch {self._batch(step)}: its "
                    "process ended, or nothing reaches it",
                )
            if still > self._stuck_s:
                raise RankError(
                    (rank,),
                    f"did nothing for {still:.0f} s, want all {self.world} ranks in batch {self._batch(step)}: it does "
                    "not come to elastic.backward, or loss_fn hangs",
                )

    def look_at_the_exchange(self, step: int) -> None:
        """Raises RankError where another rank's collective broke."""
        for rank in range(self.world):
            if rank != self.rank and self._has(_broken(step, rank)):
                raise self.broken(step, None)

    def broken(self, step: int, error: BaseException | None, doing: str = "adding up the gradients") -> RankError:
        """What is to be raised after a collective broke, with the ranks that are gone: those that neither say the same
        nor live on."""
        self._ask(lambda: self._store.set(_broken(step, self.rank), "1"))
        others = [rank for rank in range(self.world) if rank != self.rank]
        lives = {rank: self._life(rank) for rank in others}
        deadline = self._clock() + _BROKEN_S * self._beat_s
        quiet = others
        while quiet and self._clock() < deadline:
            time.sleep(0.05)
            quiet = [rank for rank in others if not self._has(_broken(step, rank))]
        gone = tuple(rank for rank in quiet if self._life(rank) in (lives[rank], _LEFT))
        why = f" ({error})" if error is not None else ""
        end = "its process ended" if gone else "all ranks live"
        return RankError(gone, f"{doing} of batch {self._batch(step)} broke: {end}{why}")

    def close(self) -> None:
        """Leaves: who waits for this rank is told. A forked child has nothing to leave."""
        if self._over.is_set() or os.getpid() != self._pid:
            return
        self._over.set()
        atexit.unregister(self.close)
        self._thread.join(timeout=5)
        try:
            self._store.set(_life(self.rank), _LEFT)
        except RuntimeError:
            return

    def _batch(self, step: int) -> int:
        return -(-step // self._per_batch)

    # ---- the store ----

    def _life(self, rank: int) -> str:
        key = _life(rank)
        if not self._has(key):
            return ""  # not there yet: it may still load its data
        return self._get(key)

    def _get(self, key: str) -> str:
        held: bytes = self._ask(lambda: self._store.get(key))
        return held.decode()

    def _has(self, *keys: str) -> bool:
        return bool(self._ask(lambda: self._store.check([*keys])))

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except RuntimeError as error:
            raise RankError(
                (),
                f"the store where they meet does not answer ({str(error).splitlines()[0][:200]}), want the process "
                "that keeps it, rank 0 or torchrun's agent",
            ) from error

    def _beat(self) -> None:
        """The thread; ends when close was called, or the store is gone."""
        beats = 0
        while not self._over.wait(self._beat_s):
            beats += 1
            if self.pausing():
                self._moved += 1
            try:
                self._say_it_lives(beats)
            except RuntimeError:
                return  # whoever waits finds it gone

    def _say_it_lives(self, beats: int) -> None:
        self._store.set(_life(self.rank), f"{beats} {self._moved}")


def stuck_after(group: Any, device: str) -> float:
    """The process group's own timeout, in seconds."""
    try:
        timeout: timedelta = group._get_backend(torch.device(device)).options._timeout
    except (AttributeError, RuntimeError):
        timeout = timedelta(minutes=30)
    return timeout.total_seconds()


def _verdict(step: int, rank: int) -> str:
    return f"verdict/{step}/{rank}"


def _broken(step: int, rank: int) -> str:
    return f"broken/{step}/{rank}"


def _life(rank: int) -> str:
    return f"life/{rank}"
