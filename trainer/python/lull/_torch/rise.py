"""A floor that rises after the dry step: asked for before it counts as the job's own.

Interpreter garbage, workspaces that a library makes late and what the user's loop keeps all end up outside
the pool. What is above the floor stands in the way of every order, since the device must show the job
within floor and budget: until it is granted it comes off what the pool may take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lull._floor import Answer
from lull._greeting import say_bytes
from lull._torch.dry import NOISE, Floor

_log = logging.getLogger("lull")

PATIENCE_S = 1.5
"""Seconds that training waits for the sidecar's answer: more than the second for which the sidecar itself may wait
for a bound to come down (handover/floor.go)."""

AGAIN_S = 10.0
"""Seconds after which a floor that was not granted is asked for again, where no budget comes before."""

LEAST_S = 1.0
"""Seconds between an answer and the next question, however many budgets come; not less than WORTH times what the
question took, since training waited so long."""

WORTH = 10.0

GONE_S = 15.0
"""Seconds without a sidecar after which training waits for no grant of its own: more than a lease."""

_WHY = {
    Answer.REFUSED: "the sidecar has no room for a floor of {}",
    Answer.LATE: f"the sidecar did not answer within {PATIENCE_S} s when asked for a floor of {{}}",
    Answer.GONE: "the sidecar is gone, and nobody can grant a floor of {}",
}


@dataclass(frozen=True)
class _Asked:
    """A question."""

    answered: float
    took: float
    epoch: int
    """Of the budget in force when it was asked."""
    floor: int
    """Bytes in force then."""


class FloorWatch:
    """Looks between batches; call check on the training thread, outside an optimizer step."""

    def __init__(
        self,
        outside: Callable[[], int],
        ask: Callable[[int, float], Answer],
        *,
        epoch: Callable[[], int] = lambda: 0,
        found: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outside = outside
        """Bytes of the job outside the pool, beyond the baseline."""
        self._ask = ask
        self._found = found
        """Called when uncovered has changed and is about to be asked for."""
        self._epoch = epoch
        """Of the last budget."""
        self._clock = clock
        self._asked: _Asked | None = None
        """The last question that was not granted."""
        self._said: tuple[Answer, int] = (Answer.GRANTED, 0)
        self._open = False
        """Whether the last that was said is that a floor is wanted."""
        self.uncovered = 0
        """Bytes that a floor must have to cover what the last check found; 0 where the floor in force does."""

    def check(self, floor: Floor) -> Floor:
        """The floor in force: the same, or a higher one that was granted.

        One that is not granted is asked for again after AGAIN_S, and after each new budget. It is logged once for
        each amount and reason.
        """
        now = self._outside()
        wanted = now + floor.step_peak + NOISE
        if wanted - NOISE // 2 <= floor.bytes:
            self._settled(floor.bytes, risen=self._asked is not None and floor.bytes > self._asked.floor)
            return floor
        self.uncovered = wanted - NOISE
        if self._due():
            self._found()  # before the question: an ack meanwhile must not promise less
            asked, epoch = self._clock(), self._epoch()
            answer = self._ask(wanted, PATIENCE_S)
            if answer is Answer.GRANTED:
                self._settled(wanted, risen=True)
                return replace(floor, bytes=wanted)
            answered = self._clock()
            self._asked = _Asked(answered, answered - asked, epoch, floor.bytes)
            self._tell(answer, now, wanted, floor)
        return floor

    def _due(self) -> bool:
        if self._asked is None:
            return True
        asked = self._asked
        least = AGAIN_S if asked.epoch == self._epoch() else max(LEAST_S, WORTH * asked.took)
        return self._clock() - asked.answered >= least

    def _settled(self, bytes: int, risen: bool) -> None:
        """Unless the floor rose, what was refused stays in mind: a need that swings around it must not ask each
        time."""
        if self._open:
            _log.info("floor: %s are enough again for what is held outside the pool", say_bytes(bytes))
        self.uncovered, self._open = 0, False
        if risen:
            self._asked, self._said = None, (Answer.GRANTED, 0)

    def _tell(self, answer: Answer, now: int, wanted: int, floor: Floor) -> None:
        if answer is self._said[0] and wanted <= self._said[1] + NOISE:
            return
        self._said, self._open = (answer, wanted), True
        _log.warning(
            "floor: %s are held outside the pool, want at most %s, and %s; the excess comes off the ceiling of "
            "activation memory, and it is asked for again in %g s or at the next budget",
            say_bytes(now),
            say_bytes(floor.bytes - floor.step_peak),
            _WHY[answer].format(say_bytes(wanted)),
            AGAIN_S,
        )

    def claim(self, floor: Floor, extra: int, pause: Callable[[], bool]) -> Floor:
        """The floor with `extra` bytes more, granted before they are taken.

        Training waits for it as it waits for a sample's memory; pause waits a moment and says whether to go on
        asking. Without a sidecar there is nobody to wait for: after GONE_S its last grant is over too, and one that
        comes later hears of the floor in the hello.
        """
        wanted = floor.bytes + extra
        told = Answer.GRANTED
        gone: float | None = None
        while (answer := self._ask(wanted, PATIENCE_S)) is not Answer.GRANTED:
            if answer is not told:
                told = answer
                _log.warning(
                    "floor: %s more are needed for parameters that are trained from now on, and %s; training waits "
                    "for it",
                    say_bytes(extra),
                    _WHY[answer].format(say_bytes(wanted)),
                )
            if answer is not Answer.GONE:
                gone = None
            elif gone is None:
                gone = self._clock()
            elif self._clock() - gone >= GONE_S:
                _log.warning(
                    "floor: no sidecar for %g s, so nobody counts %s; training goes on with them",
                    GONE_S,
                    say_bytes(wanted),
                )
                break
            if not pause():
                break
        return replace(floor, bytes=wanted)
