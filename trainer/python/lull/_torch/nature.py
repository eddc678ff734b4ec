"""Names what makes a model's gradient depend on the partition into microbatches, by nature."""

from __future__ import annotations

import torch.nn as nn

_STATISTICS = (nn.modules.batchnorm._BatchNorm,)
_DRAWS = (nn.modules.dropout._DropoutNd,)


def by_nature(model: nn.Module) -> list[str]:
    """A phrase for each kind of module that is in train mode and not the same for parts as for the whole."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, module in model.named_modules():
        does = _does(module) if module.training else ""
        if does:
            kinds.setdefault((type(module).__name__, does), []).append(name or "the model")
    return [f"{kind} ({_some(names)}) {does}" for (kind, does), names in kinds.items()]


def _does(module: nn.Module) -> str:
    if isinstance(module, _STATISTICS):
        return "uses the statistics of its microbatch"
    if isinstance(module, _DRAWS) and module.p > 0:
        return "draws for its microbatch"
    return ""


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
