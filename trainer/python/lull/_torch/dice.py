"""The random state that a forward pass draws from: PyTorch's default generators, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from lull._torch.device import Device


@dataclass(frozen=True)
class Dice:
    """One moment's state. A generator object that the model holds itself is not part of it."""

    device: tuple[torch.Tensor, ...]
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None
    """None while nobody has imported numpy.random."""

    @classmethod
    def now(cls, device: Device) -> Dice:
        numpy = sys.modules.get("numpy.random")
        return cls(device.rng(), random.getstate(), None if numpy is None else numpy.get_state(legacy=False))

    def restore(self, device: Device) -> None:
        """Puts every generator back."""
        device.set_rng(self.device)
        random.setstate(self.python)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and self.numpy is not None:
            numpy.set_state(self.numpy)
