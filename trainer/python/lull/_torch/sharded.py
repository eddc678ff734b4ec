"""FSDP2 (torch.distributed.fsdp.fully_shard): whole parameters while a batch runs, shards in between.

Ranks have different numbers of microbatches, and blocks run again when orders say so: an all-gather or a
reduce-scatter in one of them would wait for ranks that never come. So all parameters are gathered once, when all
ranks have come to the batch, and stay whole until it ends; fully_shard's own hooks, which would issue those
collectives, are off the model meanwhile. Gradients are collected whole, added up as those of any ranks, and each rank
keeps its piece. What sharding saves is then the optimizer's state, and between batches the parameters: the two whole
buffers for gradients stay. The floor says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lull._errors import RuntimeRefusal

_FSDP = "torch.distributed.fsdp"


def local(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What of these lies in this process: a DTensor's own piece, any other tensor itself."""
    return [getattr(t, "_local_tensor", t) for t in tensors]


class Shards:
    """The modules of a model that fully_shard has sharded, all over one group of ranks."""

    def __init__(self, model: torch.nn.Module, modules: list[Any]) -> None:
        self._model = model
        self._modules = modules
        self._pairs: list[tuple[Any, torch.nn.Parameter]] = []
        """Each parameter's shard, and the whole one: the same objects from the first gathering on."""
        self._off: list[tuple[dict[int, Any], dict[int, Any]]] = []
        named = dict(model.named_parameters(remove_duplicate=False))
        self._named = {name: p for name, p in named.items() if _is_dtensor(p)}
        self.mesh: Any = getattr(next(iter(self._named.values())), "device_mesh")  # noqa: B009
        self.group: Any = self.mesh.get_group()

    # ---- a batch ----

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Parameters are whole inside. A collective: enter it together."""
        self.gather()
        try:
            yield
        finally:
            self.release()

    def gather(self) -> None:
        """Makes all parameters whole, and takes fully_shard's hooks off. What a collective raises comes through."""
        try:
            for module in self._modules:
                module.reshard()  # what somebody left whole may be older than the shards
                module.unshard()
            now = dict(self._model.named_parameters(remove_duplicate=False))
            pairs = {id(shard): (shard, now[name]) for name, shard in self._named.items()}
            self._pairs = [*pairs.values()]
            for shard, param in self._pairs:
                param.requires_grad_(shard.requires_grad)
            self._take_hooks_off()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Back to shards; no collective. Whole gradients that were not taken over are dropped."""
        for hooks, before in self._off:
            hooks.clear()
            hooks.update(before)
        self._off = []
        for _, param in self._pairs:
            param.grad = None
        for module in self._modules:
            module.reshard()

    def _take_hooks_off(self) -> None:
        """As they stand, to be put back in the same order."""
        for module in self._model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                if any(map(_of_fsdp, hooks.values())):
                    self._off.append((hooks, dict(hooks)))
                    for key in [key for key, hook in hooks.items() if _of_fsdp(hook)]:
                        del hooks[key]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Gives each shard its piece of the whole gradient, on top of what it has."""
        rank, world = self.mesh.get_local_rank(), self.mesh.size()
        kind: Any = sys.modules["torch.distributed.tensor"].DTensor
        for shard, param in self._pairs:
            if param.grad is None:
                continue
            mine = piece(param.grad, shard.placements[0].dim, rank, world)
            mine = mine.clone() if shard.grad is None else shard.grad.to_local() + mine
            shard.grad = kind.from_local(
                mine, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
            )
            param.grad = None

    # ---- what belongs to whom ----

    def refuse_unreduced(self) -> None:
        """Raises RuntimeRefusal where the user's own backward pass left a gradient that was not added up."""
        for _, param in self._pairs:
            if param.grad is not None:
                raise RuntimeRefusal(
                    f"elastic.backward model: a parameter of shape {tuple(param.shape)} holds a gradient of this rank "
                    "alone, since fully_shard was told not to add it up (set_requires_gradient_sync(False)), want it "
                    "added up, or every batch through elastic.backward; nothing was trained"
                )

    def whole_of(self, params: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """The same parameters, each once, whole where they are shards."""
        known: dict[int, torch.nn.Parameter] = {id(shard): param for shard, param in self._pairs}
        return [*dict.fromkeys(known.get(id(p), p) for p in params)]

    def tensors(self) -> list[torch.Tensor]:
        """Shards and whole parameters, as they are now, for accounting."""
        return [*local(self._named.values()), *(param for _, param in self._pairs)]

    def beside(self) -> int:
        """Bytes that a batch takes besides whole parameters: this rank's gradients, and one module's gathering."""
        shards = sum(t.nbytes for t in local(self._named.values()))
        return shards + max(map(self._gathered_with, self._modules), default=0)

    def _gathered_with(self, module: Any) -> int:
        """Bytes of a module's parameters, but for those that modules within it gather by themselves."""
        inside = [m for m in module.modules() if m is not module and any(m is other for other in self._modules)]
        apart = {id(p) for m in inside for p in m.parameters()}
        return sum(p.numel() * p.element_size() for p in module.parameters() if id(p) not in apart)


def piece(tensor: torch.Tensor, dim: int, rank: int, world: int) -> torch.Tensor:
    """The part of a whole tensor that Shard(dim) gives to a rank: torch.chunk's, empty where there is none."""
    each = -(-tensor.shape[dim] // world)
    start = min(rank * each, tensor.shape[dim])
    return tensor.narrow(dim, start, min(each, tensor.shape[dim] - start))


def find_shards(model: torch.nn.Module) -> Shards | None:
    """What fully_shard made of a model; None where it made nothing. Raises RuntimeRefusal for what it would not be."""
    kind = getattr(sys.modules.get(_FSDP), "FSDPModule", None)
    if not isinstance(kind, type):
        return None
    modules: list[Any] = [m for m in model.modules() if isinstance(m, kind)]
    if not modules:
        return None
    meshes = set()
    for name, param in model.named_parameters():
        if not _is_dtensor(param):
            continue
        how: Any = param
        meshes.add(how.device_mesh)
        if how.device_mesh.ndim != 1 or len(meshes) > 1 or not how.placements[0].is_shard():
            raise RuntimeRefusal(
                f"attach model: parameter {name} is placed as {list(how.placements)} over a mesh of "
                f"{how.device_mesh.ndim} dimensions, want all sharded over one mesh of one dimension: tensor "
                "parallelism and hybrid sharding wait for other ranks in each microbatch; nothing is attached"
            )
    if not meshes:
        return None
    for module in modules:
        _refuse_policies(module)
    return Shards(model, modules)


def _refuse_policies(module: Any) -> None:
    """Raises RuntimeRefusal for what fully_shard does in the hooks that are off while Lull trains."""
    state = module._get_fsdp_state()
    if not hasattr(state, "_fsdp_param_groups"):
        raise RuntimeRefusal(
            f"attach model: it is fully_shard's of PyTorch {torch.__version__}, want PyTorch 2.13, with which this was "
            "written: an earlier one keeps its parameters otherwise; nothing is attached"
        )
    policy = state._mp_policy
    groups = [group for group in state._fsdp_param_groups if group is not None]
    offload: Any = sys.modules[_FSDP].CPUOffloadPolicy
    offloads = any(isinstance(group.offload_policy, offload) for group in groups)
    dtypes = (policy.param_dtype, policy.reduce_dtype, policy.output_dtype)
    for found, what in (
        (any(d is not None for d in dtypes), "a mp_policy, want torch.autocast in loss_fn"),
        (offloads, "an offload_policy, want parameters on the device"),
    ):
        if found:
            raise RuntimeRefusal(
                f"attach model: fully_shard was given {what}: its hooks are off while a batch runs, since ranks have "
                "different numbers of microbatches; nothing is attached"
            )


def _of_fsdp(hook: Callable[..., Any]) -> bool:
    owner = getattr(hook, "__self__", None)
    return _FSDP in (type(owner).__module__ if owner is not None else getattr(hook, "__module__", "") or "")


def _is_dtensor(param: torch.Tensor) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return isinstance(kind, type) and isinstance(param, kind)
