"""Which request may start under the bound, and when vLLM's own rule has the last word.

vLLM admits a request as soon as its prompt fits, and preempts it again and again when the bound
does not hold its answer. So a request that the bound cannot hold waits, and the sidecar is told
what it lacks. A sidecar that makes no room within PATIENCE_S (it is gone, or the device has no
more) must starve neither that request nor those behind it: then vLLM's own rule decides, and a
request whose answer ends early, as most do, is served under the bound that there is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from ._requests import Requests

logger = logging.getLogger("vllm.lull")

PATIENCE_S = 1.0
"""Longer gives training more time to make room; shorter lets a starved request in sooner."""


class Fits(Protocol):
    """HostBound or KVCachedBound: whether so many blocks fit under the bound."""

    def holds(self, need: int) -> bool: ...


class Admission:
    """Used on the scheduler's thread alone."""

    def __init__(
        self,
        requests: Requests,
        bound: Fits | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._bound = bound
        self._clock = clock
        self._first = ""  # the request at the head of the queue, refused since _since
        self._since = 0.0
        self._told = False

    def must_wait(self, request: Any) -> bool:
        """Whether a request that is not running waits for a bound that can hold it to its end."""
        if self._bound is None:
            return False
        need = self._requests.need(request)
        if self._bound.holds(need):
            return False
        now = self._clock()
        if request.request_id != self._first:
            self._first, self._since = request.request_id, now
        if now - self._since < PATIENCE_S:
            return True
        self._tell(need)
        return False

    def started(self) -> None:
        """The request asked about last got its blocks; preempted, it waits anew."""
        self._first = ""

    def lacking(self, free: int, inside: int) -> int:
        """Returns the blocks beyond the bound that let the first waiting requests in.

        inside is the pool's blocks in vLLM's hands, free those of them that nobody uses. The sum
        of the prompts must fit in the free ones, the longest request in all of them.
        """
        prompts, longest = self._requests.waiting()
        short = prompts - free
        if self._bound is not None and not self._bound.holds(longest):
            short = max(short, longest - inside)
        return max(0, short)

    def _tell(self, need: int) -> None:
        if self._told:
            return
        self._told = True
        logger.warning(
            "lull: request %s needs %d blocks for its prompt and max_tokens, more than the bound "
            "for %.0f s; vLLM admits such requests when their prompts fit, and may preempt them "
            "(said once)",
            self._first,
            need,
            PATIENCE_S,
        )
