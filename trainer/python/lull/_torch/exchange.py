"""What ranks send each other once a batch: the sum of their gradients, and the buffers of one of them.

Nothing here runs while a microbatch does, and nothing that an order does reaches it: it cannot be interrupted, and it
is entered by every rank or by none (meeting.py).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

BUCKET = 25 << 20
"""Bytes that are sent at once, as in DistributedDataParallel; a larger tensor goes alone, and without a copy."""

_SHORTEST_S, _LONGEST_S = 0.0001, 0.002
"""Seconds between looks at a collective that runs."""


def add_up(tensors: Iterable[torch.Tensor], group: Any, look: Callable[[], None]) -> None:
    """Makes each tensor the sum of those of all ranks, in place; the same bits on every rank.

    `look` is called while it waits, and may raise.
    """
    for bucket in buckets(tensors):
        only = bucket[0]
        alone = len(bucket) == 1 and only.is_contiguous()
        flat = only.view(-1) if alone else torch.cat([t.reshape(-1) for t in bucket])
        finish(dist.all_reduce(flat, group=group, async_op=True), look)
        if not alone:
            for tensor, part in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))


def buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """In order, those of one type together up to BUCKET bytes."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for kind in kinds.values():
        bucket: list[torch.Tensor] = []
        room = BUCKET
        for tensor in kind:
            if bucket and tensor.nbytes > room:
                yield bucket
                bucket, room = [], BUCKET
            bucket.append(tensor)
            room -= tensor.nbytes
        yield bucket


def beside(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that add_up takes for a moment, and what the transport copies."""
    return 2 * min(BUCKET, sum(t.nbytes for t in tensors))


def send(tensors: list[torch.Tensor], source: int, group: Any, look: Callable[[], None]) -> None:
    """Gives every rank the tensors of the rank `source` of the job; those that are equal already are not written."""
    if not tensors:
        return
    mine = torch.cat([_raw(t) for t in tensors])
    theirs = mine.clone()
    finish(dist.broadcast(theirs, source, group=group, async_op=True), look)
    sizes = [t.nbytes for t in tensors]
    for tensor, old, new in zip(tensors, torch.split(mine, sizes), torch.split(theirs, sizes), strict=True):
        if not torch.equal(old, new):
            tensor.copy_(new.clone().view(tensor.dtype).view(tensor.shape))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def finish(work: Any, look: Callable[[], None]) -> None:
    """Waits for a collective; what went wrong in it comes through as a RuntimeError."""
    pause = _SHORTEST_S
    while not work.is_completed():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_S)
        look()
    work.wait()


def shape_of(tensors: Iterable[torch.Tensor]) -> int:
    """A number that is equal for lists of the same shapes and types."""
    return zlib.crc32(repr([(tuple(t.shape), str(t.dtype)) for t in tensors]).encode())


def values_of(tensors: Iterable[torch.Tensor]) -> int:
    """A number that is equal for lists of the same bits; one that is changed anywhere changes it, almost surely."""
    total = 0
    for tensor in tensors:
        raw = _raw(tensor)
        whole = raw[: raw.numel() // 4 * 4]
        total = total * 31 + int(whole.view(torch.int32).sum(dtype=torch.int64)) + int(raw[whole.numel() :].sum())
    return total & (1 << 63) - 1


_ASKED = 4096


def look_of(tensors: Iterable[torch.Tensor]) -> int:
    """A number that is equal for equal batches; of a large tensor a few thousand values are looked at, all over it."""
    seen = 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _ASKED)].contiguous().cpu()
        seen = zlib.crc32(_raw(some).numpy().tobytes(), seen)
        seen = zlib.crc32(repr((tuple(tensor.shape), str(tensor.dtype))).encode(), seen)
    return seen
