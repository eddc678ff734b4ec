"""What a rank says of a batch when it has run its microbatches, and whether what all of them say fits together."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from lull._errors import RuntimeRefusal


@dataclass(frozen=True)
class Verdict:
    """What a rank says of a batch when it has run its microbatches."""

    how: str
    """How backward was called; the same on every rank."""
    amount: float
    """Samples, or the sum of their weights, that this rank's gradient is the mean of."""
    samples: int
    """Those that it computed."""
    loss: float
    kind: str
    """The type of the loss; "" where nothing was computed."""
    reached: str
    """The parameters that got a gradient, as the bits of a hexadecimal number, the first one lowest."""
    buffers: int
    """What shapes its buffers have."""
    model: tuple[int, int]
    """What shapes and values the trained parameters have, before the first batch; the shapes only afterwards."""
    rate: float
    """Samples a second, of late; 0 for unknown."""
    draining: bool

    def flags(self, count: int) -> list[bool]:
        """Whether each of `count` parameters got a gradient."""
        number = int(self.reached, 16)
        return [bool(number >> i & 1) for i in range(count)]

    def words(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, words: str) -> Verdict:
        fields = json.loads(words)
        return cls(**{**fields, "model": tuple(fields["model"])})


def bits(flags: list[bool]) -> str:
    """The text for Verdict.reached."""
    return f"{sum(1 << i for i, flag in enumerate(flags) if flag):x}"


def refuse_unlike(said: list[Verdict]) -> None:
    """Raises RuntimeRefusal where what the ranks say does not fit together; every rank does, or none."""
    if len({verdict.how for verdict in said}) > 1:
        raise RuntimeRefusal(
            f"elastic.backward: ranks call it differently ({_by_rank([v.how for v in said])}), want the same "
            "reduction, kind of weights and shared, and with shared the same batch; nothing was trained"
        )
    if len({verdict.model for verdict in said}) > 1:
        raise RuntimeRefusal(
            f"elastic.backward model: ranks train different parameters ({_by_rank([v.model for v in said])} are "
            "checks of shapes and values), want the same on all: DistributedDataParallel sends rank 0's when it is "
            "made, and a checkpoint is to be loaded on every rank; nothing was trained"
        )
    if not sum(verdict.amount for verdict in said):
        raise RuntimeRefusal(
            "elastic.backward weights: sum over all ranks is 0, want a number above 0; nothing was trained"
        )


def _by_rank(values: list[Any]) -> str:
    return "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
