"""The one question that a trainer asks: may the floor rise?"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["FloorQuestion"]


class FloorQuestion:
    """Waits on one thread for an answer that comes on another. One question is open at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._open = False
        self._answer: bool | None = None

    def ask(self, send: Callable[[], bool], timeout: float) -> bool:
        """Sends the question and waits up to `timeout` seconds; no answer is a no."""
        with self._turn:
            with self._changed:
                self._open, self._answer = True, None
            sent = send()
            with self._changed:
                if sent:
                    self._changed.wait_for(lambda: self._answer is not None, timeout)
                self._open = False
                return self._answer is True

    def answer(self, granted: bool) -> None:
        """The first answer to an open question counts; without a question it means nothing."""
        with self._changed:
            if self._open and self._answer is None:
                self._answer = granted
                self._changed.notify_all()
