"""Hooks that others put on parameters: they would run once a microbatch, those that are undone included."""

from __future__ import annotations

from typing import Any

import torch

from lull._errors import RuntimeRefusal

OURS = "lull._torch.grads"
"""The module of our own hook."""


def accumulation_hooks(param: torch.Tensor) -> list[Any]:
    """What others have registered with register_post_accumulate_grad_hook."""
    hooks: dict[int, Any] = getattr(param, "_post_accumulate_grad_hooks", None) or {}
    return [hook for hook in hooks.values() if getattr(hook, "__module__", "") != OURS]


def foreign(where: str, param: str, then: str) -> RuntimeRefusal:
    """The refusal of a hook that sees .grad."""
    return RuntimeRefusal(
        f"{where}: parameter {param} has a register_post_accumulate_grad_hook of its own; it would run once a "
        f"microbatch, on a part of the gradient, want none: do its work after elastic.backward; {then}"
    )


def refuse_hooks(
    model: torch.nn.Module, params: list[torch.nn.Parameter], *, trusted: bool, where: str = "attach model"
) -> None:
    """Raises RuntimeRefusal where a hook of somebody else would make another gradient, or take another step.

    A hook on the gradient itself (register_hook) is right if it is linear and has no effects, which nobody can
    see from outside: it is for the user to say so, with partition="trusted".
    """
    then = "nothing is attached" if where.startswith("attach") else "nothing was trained"
    names = {id(p): name for name, p in model.named_parameters()}
    for param in params:
        name = names.get(id(param), "of the optimizer")
        if accumulation_hooks(param):
            raise foreign(where, name, then)
        if param._backward_hooks and not trusted:
            raise RuntimeRefusal(
                f"{where}: parameter {name} has a register_hook; it would run once a microbatch, want none, or "
                f'partition="trusted" if it is linear in the gradient and does nothing else; {then}'
            )
