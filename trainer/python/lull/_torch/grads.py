"""Gradient buffers: allocated once, outside what can be given back; a microbatch commits or leaves no trace.

Two buffers a parameter. `total` collects the batch, in float32 for low-precision parameters. `scratch` is
what autograd adds one microbatch into: commit adds it to total, undo zeroes it. Parameters that no
microbatch reached keep a gradient of None, as PyTorch leaves them: the optimizer skips those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.hooks import RemovableHandle

from lull._errors import RuntimeRefusal
from lull._torch.foreign import accumulation_hooks, foreign

_LOW = (torch.float16, torch.bfloat16)


@dataclass
class _Buffer:
    param: torch.nn.Parameter
    total: torch.Tensor
    scratch: torch.Tensor
    final: torch.Tensor
    """What the optimizer sees: total, or its low-precision copy (then scratch serves)."""
    reached: bool = False
    """A gradient arrived in this batch, or was there when it began."""
    began: bool = False
    """A gradient was there when the batch began."""
    touched: bool = False
    """A gradient arrived in this microbatch."""
    wide: torch.Tensor | None = None
    """In float32, what earlier chunks of this microbatch gave a 16-bit parameter."""
    own: tuple[int, int] = (0, 0)
    """References to final, and to its memory, while nobody else has it."""
    prior: torch.Tensor | None = None
    """Where batches are kept apart: the gradient that was there when this one began."""
    lent: bool = False
    """Whether prior is a copy, since final itself was the gradient."""

    def references(self) -> tuple[int, int]:
        """Those that there are now: to the tensor, and to its memory (a view has the latter only)."""
        return sys.getrefcount(self.final), torch._C._storage_Use_Count(self.final.untyped_storage()._cdata)

    def renew(self) -> None:
        """A new final: somebody keeps the last one, as a gradient may be kept in plain PyTorch."""
        fresh = torch.zeros_like(self.final)
        if self.final is self.total:
            self.total = fresh
        else:
            self.scratch = fresh
        self.final = fresh


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"


def buffer_bytes(params: list[torch.nn.Parameter]) -> int:
    """What the buffers of these parameters take."""
    return sum(p.nbytes + p.numel() * (4 if p.dtype in _LOW else p.element_size()) for p in params)


class Gradients:
    """The buffers of one model."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        self._buffers = [self._make(p) for p in params]
        self._handles: list[RemovableHandle] = [
            b.param.register_post_accumulate_grad_hook(self._mark(b))  # type: ignore[no-untyped-call]
            for b in self._buffers
        ]
        self._active = False

    @staticmethod
    def _make(param: torch.nn.Parameter) -> _Buffer:
        scratch = torch.zeros_like(param, memory_format=torch.preserve_format, requires_grad=False)
        low = param.dtype in _LOW
        total = torch.zeros_like(scratch, dtype=torch.float32 if low else param.dtype)
        buffer = _Buffer(param, total, scratch, scratch if low else total)
        del total, scratch
        buffer.own = buffer.references()
        return buffer

    def _mark(self, buffer: _Buffer) -> Callable[[torch.Tensor], None]:
        def mark(param: torch.Tensor) -> None:
            if self._active:
                buffer.touched = True

        return mark

    @torch.no_grad()
    def begin_batch(self, *, apart: bool = False) -> None:
        """Takes over what .grad holds: None starts from zero, anything else is added to.

        A gradient that .grad has let go of and that somebody still refers to stays as it is. `apart` keeps what .grad
        holds out of this batch's sums until join_ranks, or abandon.
        """
        self._active = True
        for b in self._buffers:
            grad = b.param.grad
            b.began = grad is not None
            b.reached = b.began and not apart
            b.prior, b.lent = None, grad is b.final
            if apart and grad is not None:
                b.prior = grad.detach().clone() if b.lent else grad
            if grad is not b.final:
                b.param.grad = None
                if any(now > own for now, own in zip(b.references(), b.own, strict=True)):
                    b.renew()
            if grad is None or apart:
                b.total.zero_()
            elif grad is not b.total:
                b.total.copy_(grad)
            b.scratch.zero_()
            b.touched = False
            b.param.grad = b.scratch

    @torch.no_grad()
    def commit(self) -> None:
        """Adds the microbatch's gradients to the batch's."""
        for b in self._buffers:
            if b.touched:
                got = b.param.grad
                b.total.add_(b.scratch if got is None else got)
                if b.wide is not None:
                    b.total.add_(b.wide)
                b.reached = True
        self.undo()

    @torch.no_grad()
    def widen(self) -> None:
        """Between two chunks of a microbatch: what 16-bit parameters have got moves to float32, since the next chunk
        may be too small to change it. The memory is the microbatch's."""
        for b in self._buffers:
            if b.touched and b.param.dtype in _LOW:
                got = b.scratch if b.param.grad is None else b.param.grad
                b.wide = got.float() if b.wide is None else b.wide.add_(got)
                b.scratch.zero_()
                b.param.grad = b.scratch

    @torch.no_grad()
    def undo(self) -> None:
        """Forgets the microbatch's gradients."""
        for b in self._buffers:
            if b.touched:
                b.scratch.zero_()
                b.touched = False
            b.wide = None
            b.param.grad = b.scratch

    def reached(self) -> list[bool]:
        """Whether this batch reached each parameter; for batches that are kept apart."""
        return [b.reached for b in self._buffers]

    @torch.no_grad()
    def join_ranks(self, reached: list[bool], factor: float, add_up: Callable[[list[torch.Tensor]], None]) -> None:
        """Makes the sums of this rank's batch those of all ranks: times its factor, added up, on top of what was there.

        `reached` says of each parameter whether any rank reached it, and is the same on every rank.
        """
        for b, anywhere in zip(self._buffers, reached, strict=True):
            b.reached = anywhere
            if anywhere and factor != 1.0:
                b.total.mul_(factor)
        add_up([b.total for b in self._buffers if b.reached])
        for b in self._buffers:
            if b.prior is not None:
                b.total.add_(b.prior)
                b.reached, b.prior = True, None

    @torch.no_grad()
    def abandon(self) -> None:
        """Puts .grad back to what it was before a batch that was kept apart; nothing of the batch is left."""
        if not self._active:
            return
        self._active = False
        for b in self._buffers:
            b.param.grad = None
            if b.prior is not None and b.lent:
                b.param.grad = b.final.copy_(b.prior)
            elif b.prior is not None:
                b.param.grad = b.prior
            b.prior, b.touched = None, False

    @torch.no_grad()
    def end_batch(self, whole: bool) -> bool:
        """Gives the optimizer its gradients; those of a batch that failed are forgotten where they began empty.

        Where they did not, what was committed cannot be taken out again without a third buffer as large as the
        model. Returns whether there are such gradients.
        """
        self._active = False
        for b in self._buffers:
            if not whole and not b.began:
                b.reached = False
            if b.reached and b.final is not b.total:
                b.final.copy_(b.total)
            b.param.grad = b.final if b.reached else None
        return any(b.began for b in self._buffers)

    def refuse_foreign_hooks(self) -> None:
        """Raises RuntimeRefusal where somebody else's hook now sees a parameter's gradient accumulate."""
        for b in self._buffers:
            if accumulation_hooks(b.param):
                raise foreign("elastic.backward", f"of shape {tuple(b.param.shape)}", "nothing was trained")

    def refuse_changed(self) -> None:
        """Raises RuntimeRefusal where a parameter is no longer what its buffers were made for."""
        for b in self._buffers:
            now, then = b.param, b.scratch
            if now.dtype != then.dtype or now.shape != then.shape or now.device != then.device:
                raise RuntimeRefusal(
                    f"elastic.backward model: a parameter is {_kind(now)}, want {_kind(then)} as when it was attached: "
                    "close() and attach again after changing a model; nothing was trained"
                )

    def sums(self) -> list[torch.Tensor]:
        """What a batch is collected in."""
        return [b.total for b in self._buffers]

    def tensors(self) -> list[torch.Tensor]:
        """Every buffer, for accounting."""
        return [t for b in self._buffers for t in (b.total, b.scratch, b.prior) if t is not None]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
