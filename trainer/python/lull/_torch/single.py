"""One process trains one model: several workers would have to shrink together, which nothing here does."""

from __future__ import annotations

import sys

import torch

from lull._errors import RuntimeRefusal

_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel"),
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed._composable.fsdp", "FSDPModule"),
)


def refuse_several(model: torch.nn.Module, world: int) -> None:
    """Raises RuntimeRefusal for a model that is spread over workers, and for a job of several ranks."""
    kinds = _wrapper_types()
    for name, module in model.named_modules():
        for kind, text in kinds:
            if isinstance(module, kind):
                raise RuntimeRefusal(
                    f"attach model: {name or 'the model'} is a {text}, want a plain module: several workers are not "
                    "supported yet; nothing is attached"
                )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        world = max(world, distributed.get_world_size())
    if world > 1:
        raise RuntimeRefusal(
            f"attach world: got {world} ranks, want 1: several workers are not supported yet; nothing is attached"
        )


def _wrapper_types() -> list[tuple[type, str]]:
    """Only of modules that are imported already: a model cannot be one of the others."""
    found = []
    for module, name in _WRAPPERS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append((kind, name))
    return found
