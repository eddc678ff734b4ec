"""Which kernels of attention may be taken: torch.nn.attention.sdpa_kernel and torch.backends.cuda's switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_BACKENDS: Any = torch.backends.cuda
_SWITCHES: list[tuple[Callable[[], bool], Callable[[bool], None]]] = [
    (getattr(_BACKENDS, f"{name}_sdp_enabled"), getattr(_BACKENDS, f"enable_{name}_sdp"))
    for name in ("flash", "mem_efficient", "math", "cudnn")
    if hasattr(_BACKENDS, f"enable_{name}_sdp")
]
_ORDER: Callable[[], list[int]] = getattr(torch._C, "_get_sdp_priority_order", list)
_REORDER: Callable[[list[int]], None] = getattr(torch._C, "_set_sdp_priority_order", lambda order: None)

Kernels = tuple[tuple[bool, ...], tuple[int, ...]]
"""The switches, and the order in which what is on is tried."""


def kernels_now() -> Kernels:
    """What a call of attention would find."""
    return tuple(enabled() for enabled, _ in _SWITCHES), tuple(_ORDER())


class Chosen:
    """Puts the kernels of another moment in place of those of now, with `with`."""

    def __init__(self, then: Kernels) -> None:
        self._then, self._now = then, kernels_now()

    def __enter__(self) -> None:
        self._put(self._now, self._then)

    def __exit__(self, *exc: object) -> None:
        self._put(self._then, self._now)

    @staticmethod
    def _put(old: Kernels, new: Kernels) -> None:
        for (_, switch), before, after in zip(_SWITCHES, old[0], new[0], strict=True):
            if before != after:
                switch(after)
        if old[1] != new[1]:
            _REORDER(list(new[1]))
