"""ShardedElastic: the handle of one rank whose model fully_shard (FSDP2) has sharded.

A batch takes two meetings: before parameters are gathered, so that no rank waits inside that collective for one that
is slow or dead, and before gradients are added up (ranked.py).
"""

from __future__ import annotations

from typing import Any

import torch

from lull._torch.call import Call
from lull._torch.ranked import RankedElastic
from lull._torch.sharded import Shards
from lull._torch.trained import trained


class ShardedElastic(RankedElastic):
    """A RankedElastic whose parameters are whole only while a batch runs."""

    def __init__(self, *args: Any, shards: Shards, **options: Any) -> None:
        self._shards = shards
        with shards.whole():  # all ranks attach: the buffers for gradients are those of whole parameters
            super().__init__(*args, **options)

    def _batch(self, call: Call) -> torch.Tensor:
        self._step += self._step % 2 + 1  # odd: a batch that did not come to its second meeting has had both
        try:
            self._meet_to_gather()
            self._gather()
        except BaseException as error:
            self.meeting.fail(self._step + 1, error)  # those who have gathered hear it at their second meeting
            raise
        try:
            loss = super()._batch(call)
            self._shards.take_gradients()
        finally:
            self._shards.release()
        return loss

    def _gather(self) -> None:
        try:
            self._shards.gather()
        except RuntimeError as error:
            raise self.meeting.broken(self._step, error, "gathering the parameters") from error

    def _meet_to_gather(self) -> None:
        began = self._clock()
        try:
            self._shards.refuse_unreduced()
        except BaseException as error:
            self.meeting.fail(self._step, error)
            raise
        self._met = False
        self.meeting.got_on()
        self.meeting.meet(self._step, "")
        self.stats.waited_s += self._clock() - began

    def _trained(self) -> list[torch.nn.Parameter]:
        return self._shards.whole_of(trained(self.model, self.optimizer))

    def _beside_a_step(self) -> int:
        return super()._beside_a_step() + self._shards.beside()

    def _weights(self) -> list[torch.Tensor]:
        return self._shards.tensors()
