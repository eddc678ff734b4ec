"""What the scheduler's requests need, in blocks. Reads vLLM's objects, changes nothing."""

from __future__ import annotations

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

    def lacking(self, free: int) -> int:
        """Returns the blocks that the first waiting requests lack for what they bring along."""
        wanted = 0
        for at, request in enumerate(self._scheduler.waiting):
            if at >= _SCAN:
                break
            wanted += self._blocks(request.num_tokens + 1)
        return max(0, wanted - free)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)
