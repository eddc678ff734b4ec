"""What a microbatch changes besides gradients, and how it is put back: random state and moving buffers."""

from __future__ import annotations

import torch

from lull._torch.device import Device
from lull._torch.replay import Moving


class Snapshot:
    """The state before a microbatch. Restoring copies values into the same tensors."""

    def __init__(self, device: Device, moving: Moving) -> None:
        self._device = device
        self._rng = device.rng()
        self._buffers = [(b, b.detach().clone()) for owner, name in moving if (b := owner._buffers[name]) is not None]

    @torch.no_grad()
    def restore(self) -> None:
        self._device.set_rng(self._rng)
        for buffer, value in self._buffers:
            buffer.copy_(value)
