"""The one question that a trainer asks: may the floor rise?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

__all__ = ["Answer", "FloorQuestion"]


class Answer(Enum):
    """What became of a question."""

    GRANTED = "granted"
    """Or there is nobody to ask."""
    REFUSED = "refused"
    LATE = "late"
    """None came in time; a grant that comes later still holds."""
    GONE = "gone"
    """The sidecar is gone."""


class FloorQuestion:
    """Waits on one thread for an answer that comes on another. One question is open at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._open = False
        self._wanted = 0
        self._answer: Answer | None = None

    def ask(self, floor: int, send: Callable[[], bool], timeout: float) -> Answer:
        """Sends the question for `floor` bytes and waits up to `timeout` seconds for the answer."""
        with self._turn:
            with self._changed:
                self._open, self._wanted, self._answer = True, floor, None
            sent = send()
            with self._changed:
                if sent:
                    self._changed.wait_for(lambda: self._answer is not None, timeout)
                self._open = False
                return self._answer or (Answer.LATE if sent else Answer.GONE)

    def grant(self, floor: int) -> None:
        """A floor is in force. One below what is asked for answers an earlier question, which is over."""
        with self._changed:
            if floor >= self._wanted:
                self._settle(Answer.GRANTED)

    def refuse(self) -> None:
        """No, whichever question it answers: a late no costs a question, a late yes would cost memory."""
        with self._changed:
            self._settle(Answer.REFUSED)

    def lose(self) -> None:
        """The connection ended: no answer comes."""
        with self._changed:
            self._settle(Answer.GONE)

    def _settle(self, answer: Answer) -> None:
        """The first answer to an open question counts; without a question it means nothing."""
        if self._open and self._answer is None:
            self._answer = answer
            self._changed.notify_all()
