"""What the scheduler's requests need, in blocks. Reads vLLM's objects, changes nothing."""

from __future__ import annotations

import itertools
from typing import Any

_SCAN = 64  # waiting requests looked at for what they lack; more would cost the step


class Requests:
    """The live requests of one scheduler."""

    def __init__(self, scheduler: Any, block_tokens: int) -> None:
        self._scheduler = scheduler
        self._block_tokens = block_tokens

    def need(self, request: Any) -> int:
        """Returns the blocks of a request at its longest: its prompt and its whole answer."""
        scheduler = self._scheduler
        tokens = request.num_prompt_tokens + request.max_tokens + scheduler.num_lookahead_tokens
        return self._blocks(min(tokens, scheduler.max_model_len))

    def largest(self, within: int) -> int:
        """Returns the largest need of a live request that fits in so many blocks.

        A larger one is not admitted under such a bound anyway; it waits for the sidecar.
        """
        needs = (self.need(request) for request in self._scheduler.requests.values())
        return max((need for need in needs if need <= within), default=0)

    def waiting(self) -> tuple[int, int]:
        """Returns two figures of the first waiting requests, in blocks.

        The sum of what they bring along, and the largest need of one.
        """
        wanted = longest = 0
        for request in itertools.islice(self._scheduler.waiting, _SCAN):
            wanted += self._blocks(request.num_tokens + 1)
            longest = max(longest, self.need(request))
        return wanted, longest

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)
