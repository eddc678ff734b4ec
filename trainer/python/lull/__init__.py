"""Lull's training runtime: a PyTorch job that gives activation memory back within milliseconds.

    elastic = lull.attach(model, optimizer)
    for batch in loader:
        optimizer.zero_grad()
        loss = elastic.backward(batch, loss_fn)
        optimizer.step()

Start the script with `python -m lull.run script.py`. Importing lull does not import torch; attach does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lull._errors import (
    ChannelError,
    ConfigError,
    LullError,
    ProtocolError,
    RankError,
    RuntimeRefusal,
)

if TYPE_CHECKING:
    from lull._torch.attach import attach
    from lull._torch.batch import whole
    from lull._torch.elastic import Elastic

__all__ = [
    "ChannelError",
    "ConfigError",
    "Elastic",
    "LullError",
    "ProtocolError",
    "RankError",
    "RuntimeRefusal",
    "attach",
    "whole",
]

_LAZY = {"attach": "lull._torch.attach", "Elastic": "lull._torch.elastic", "whole": "lull._torch.batch"}


def __getattr__(name: str) -> Any:
    """Imports torch only for what needs it."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lull' has no attribute {name!r}")
