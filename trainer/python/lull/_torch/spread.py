"""What of a job's ranks is found when it attaches: the process group, and DistributedDataParallel around the model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lull._errors import RuntimeRefusal

_log = logging.getLogger("lull")

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of operators that wait for other ranks."""


@dataclass(frozen=True)
class Spread:
    """A process group of several ranks, and the wrapper that would add up gradients in it."""

    group: Any
    rank: int
    """In the group."""
    world: int
    ddp: Any = None

    def agree(self, mine: list[str]) -> list[str]:
        """Rank 0's words; a collective."""
        words = [*mine]
        torch.distributed.broadcast_object_list(words, self.source(0), group=self.group)
        return words

    def store(self, name: str) -> Any:
        """What the ranks have in common under this name, which must be a new one: the store may be older than the
        processes, since torchrun's agent keeps it over a restart."""
        distributed: Any = torch.distributed
        return distributed.PrefixStore(f"lull/{name}", distributed.distributed_c10d._get_default_store())

    def source(self, rank: int) -> int:
        """What collectives call this rank of the group."""
        return torch.distributed.get_global_rank(self.group, rank)

    @contextmanager
    def quiet(self, model: torch.nn.Module) -> Iterator[None]:
        """The wrapper issues no collective meanwhile: not for gradients, nor for buffers in its first forward."""
        ddp = self.ddp
        handle = model.register_forward_pre_hook(self._refuse_another)
        before = None
        if ddp is not None:
            before = ddp.require_backward_grad_sync
            # Buffers stay as they are afterwards: they are equal after each batch, and a rank may evaluate alone.
            ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        try:
            yield
        finally:
            handle.remove()
            if ddp is not None:
                ddp.require_backward_grad_sync = before

    def _refuse_another(self, model: torch.nn.Module, args: Any) -> None:
        kind = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
        active = getattr(kind, "_active_ddp_module", None)
        if active is not None and active is not self.ddp and active.module is model:
            raise RuntimeRefusal(
                "elastic.backward loss_fn: it calls the model in a DistributedDataParallel that attach was not given, "
                "want attach(that, optimizer): it would add up gradients in each microbatch; nothing was trained"
            )

    def buffers(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """Those that every rank is to have alike."""
        ddp = self.ddp
        if ddp is not None and not ddp.broadcast_buffers:
            return []
        ignored = ddp.parameters_to_ignore if ddp is not None else ()
        return [b for name, b in model.named_buffers() if name not in ignored and b.layout == torch.strided]


def unwrap(model: torch.nn.Module) -> tuple[torch.nn.Module, Any]:
    """The model inside DistributedDataParallel, and that; or the model itself and None."""
    kind = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if kind is None or type(model) is not kind:
        return model, None
    ddp: Any = model
    for found, what in (
        (ddp.static_graph, "static_graph=True, want it without"),
        (ddp.mixed_precision is not None, "mixed_precision, want torch.autocast in loss_fn"),
        (bool(getattr(ddp, "_comm_hooks", None)), "a communication hook, want none"),
        (bool(getattr(ddp, "_delay_all_reduce_params", None)), "delay_all_reduce_named_params, want it without"),
    ):
        if found:
            raise RuntimeRefusal(
                f"attach model: DistributedDataParallel has {what}: Lull adds up the gradients itself, once a batch; "
                "nothing is attached"
            )
    inner: torch.nn.Module = ddp.module
    return inner, ddp


def spread_of(model: torch.nn.Module, ddp: Any, world: int, alone: bool, sharded_over: Any = None) -> Spread | None:
    """The ranks that `model` is trained by; None for one, or where the caller wants to be `alone`. Parameters that are
    `sharded_over` a group are nobody's alone.

    `world` is what the environment says. Raises RuntimeRefusal where ranks cannot meet, or would in every microbatch.
    """
    if alone and ddp is None and sharded_over is None:
        return None
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        if world > 1:
            raise RuntimeRefusal(
                f"attach world: got {world} ranks and no process group, want torch.distributed.init_process_group "
                "before it, or world=1 for a job of its own; nothing is attached"
            )
        return None
    group = ddp.process_group if ddp is not None else sharded_over or distributed.group.WORLD
    ranks = distributed.get_world_size(group)
    if ranks == 1 and ddp is None and sharded_over is None:
        return None
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise RuntimeRefusal(
                f"attach model: {name} is a SyncBatchNorm, want BatchNorm: it waits for all ranks in each microbatch, "
                "and ranks have different numbers of them; nothing is attached"
            )
    return Spread(group, distributed.get_rank(group), ranks, ddp)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses a collective before it is issued."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in _COLLECTIVES:
            raise RuntimeRefusal(
                f"elastic.backward loss_fn: it issues a collective ({func.name()}), want none: it would wait for all "
                "ranks in each microbatch, and ranks have different numbers of them; nothing was trained"
            )
        return func(*args, **(kwargs or {}))


def refuse_collectives(loss_fn: Callable[[Any], Any], few: Any) -> None:
    """Raises RuntimeRefusal where loss_fn waits for other ranks; asked of a few samples, in the modes that hold. What
    else goes wrong is for the first real pass to say."""
    try:
        with _Watch():  # type: ignore[no-untyped-call]
            loss_fn(few)
    except RuntimeRefusal:
        raise
    except Exception as error:
        _log.debug("loss_fn was not looked through for collectives: %s", error)
