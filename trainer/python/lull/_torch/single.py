"""One process trains one model, whole: what is spread over devices inside a microbatch is refused."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Final, Protocol

import torch

from lull._errors import RuntimeRefusal

_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel"),
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed._composable.fsdp", "FSDPModule"),
)


class _Closable(Protocol):
    @property
    def closed(self) -> bool: ...


class _Place:
    """Who is elastic in this process: one at most, since the sidecar sees the bytes of a process only as a whole, and
    its pool has one ceiling.

    A process has one, as it has one arena. A forked child speaks for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._holder: weakref.ReferenceType[_Closable] | None = None

    def refuse_if_taken(self) -> None:
        """Raises RuntimeRefusal while the holder is not closed."""
        with self._lock:
            holder = self._holder() if self._holder is not None and self._pid == os.getpid() else None
        if holder is not None and not holder.closed:
            raise RuntimeRefusal(
                "attach: another lull.attach of this process is not closed, want one at a time, since both would share "
                "one pool with one ceiling; close() that one first, or train this model without Lull; nothing is "
                "attached"
            )

    def take(self, holder: _Closable) -> None:
        """From now on `holder` has it, until it is closed or nobody has it any more."""
        with self._lock:
            self._pid, self._holder = os.getpid(), weakref.ref(holder)


PLACE: Final = _Place()


def refuse_wrapped(model: torch.nn.Module, *, sharded: bool = False) -> None:
    """Raises RuntimeRefusal for a model that is spread over devices or workers; what DistributedDataParallel holds is
    given without it. `sharded` says that what fully_shard made of it is known, and may be."""
    kinds = [(kind, text) for kind, text in _wrapper_types() if not sharded or text != "FSDPModule"]
    for name, module in model.named_modules():
        for kind, text in kinds:
            if isinstance(module, kind):
                raise RuntimeRefusal(
                    f"attach model: {name or 'the model'} is a {text}, want a plain module, or one as a whole in "
                    "DistributedDataParallel: others wait for all ranks in each microbatch, and ranks have different "
                    "numbers of them; nothing is attached"
                )
    tensors = sys.modules.get("torch.distributed.tensor")
    spread = getattr(tensors, "DTensor", None)
    for name, param in model.named_parameters():
        if not sharded and isinstance(spread, type) and isinstance(param, spread):
            raise RuntimeRefusal(
                f"attach model: parameter {name} is a DTensor, want a plain one on each rank, or fully_shard's; "
                "nothing is attached"
            )


def _wrapper_types() -> list[tuple[type, str]]:
    """Only of modules that are imported already: a model cannot be one of the others."""
    found = []
    for module, name in _WRAPPERS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append((kind, name))
    return found
