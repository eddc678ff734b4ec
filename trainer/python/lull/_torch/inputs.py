"""A block's kept input: what is needed to run the block again, and proof that it did not change."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal

FIXED: tuple[type, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.memory_format,
    torch.layout,
    torch.nn.Module,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
)


def looks_like_cache(value: object) -> bool:
    """A KV cache grows when the block that holds it runs: a second run would grow it again."""
    return callable(getattr(value, "update", None)) and any(
        hasattr(value, name) for name in ("get_seq_length", "key_cache", "layers", "get_max_cache_shape")
    )


class Inputs:
    """The arguments of one call of a block, kept without their graph.

    Tensors are kept as detached aliases: they share the storage and the version counter, so a later
    in-place edit is seen. Containers are copied, so what the block does to a list is seen as well.
    """

    __slots__ = ("_leaves", "_spec", "_versions", "keys", "opaque")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._leaves: list[tuple[Any, bool]] = []
        self._versions: list[int] = []
        self.keys: set[int] = set()
        self.opaque = ""
        """Why a second run cannot be trusted, or ""."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                self._leaves.append((leaf.detach(), leaf.requires_grad))
                self._versions.append(leaf._version)
                self.keys.add(storage_key(leaf))
                continue
            if looks_like_cache(leaf):
                raise RuntimeRefusal(
                    f"elastic.backward block {name}: argument is a {type(leaf).__name__}, a cache that a second run "
                    "would change, want none while training (use_cache=False); nothing was trained"
                )
            if not isinstance(leaf, FIXED):
                self.opaque = f"argument of type {type(leaf).__name__}"
            self._leaves.append((leaf, False))
            self._versions.append(0)

    def changed(self) -> bool:
        """Whether a kept tensor was edited in place since the call."""
        return any(
            isinstance(leaf, torch.Tensor) and leaf._version != version
            for (leaf, _), version in zip(self._leaves, self._versions, strict=True)
        )

    def grew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call changed its own containers."""
        return bool(pytree.tree_structure((args, kwargs)) != self._spec)

    def call(self, function: Callable[..., Any]) -> Any:
        """Runs function on fresh leaves of the kept tensors."""
        leaves = [
            leaf.detach().requires_grad_(grad) if isinstance(leaf, torch.Tensor) else leaf
            for leaf, grad in self._leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return function(*args, **kwargs)

    def bytes(self) -> int:
        """Bytes of the distinct storages kept."""
        seen: dict[int, int] = {}
        for leaf, _ in self._leaves:
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                seen[storage_key(leaf)] = leaf.untyped_storage().nbytes()
        return sum(seen.values())


def storage_key(tensor: torch.Tensor) -> int:
    """Names a tensor's storage while it lives; 0 for what has no plain storage."""
    if tensor.layout != torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError) as error:
        raise RuntimeRefusal(
            f"elastic.backward model: a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory of its "
            "own, want one that has: forward AD (torch.autograd.forward_ad, torch.func.jvp), other torch.func "
            "transforms and classes of tensors that wrap others make such; the microbatch is undone"
        ) from error
