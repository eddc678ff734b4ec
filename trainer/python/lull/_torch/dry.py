"""The full dry step: forward, backward and optimizer step on one sample, leaving no trace.

It finds the floor before anything is granted. The optimizer runs as a shallow copy with copies of the
parameters, so neither parameters nor optimizer state, schedules or hooks of the real one are touched.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lull._torch.device import Device
from lull._torch.sharded import local

NOISE = 4 << 20
"""Bytes for what the interpreter and small tensors add and drop again."""


@dataclass(frozen=True)
class Floor:
    """What a full dry step took outside the pool, in bytes beyond the baseline."""

    bytes: int
    state: int
    step_peak: int


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of an optimizer's state; of those that ranks share, this one's piece."""
    return local(v for state in optimizer.state.values() for v in _tensors(state))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return []


def _stand_in(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """A copy that steps copies; returns it and the tensors that it adds only for this trial."""
    twin = copy.copy(optimizer)
    twin.state = collections.defaultdict(dict)
    twin.param_groups = []
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, hooks, collections.OrderedDict())
    extra: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        params = []
        for param in group["params"]:
            stand_in = torch.nn.Parameter(param.detach().clone(), requires_grad=param.requires_grad)
            extra.append(stand_in)
            if param.requires_grad:
                stand_in.grad = torch.zeros_like(stand_in)
                extra.append(stand_in.grad)
            params.append(stand_in)
        options = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k != "params"}
        twin.param_groups.append({**options, "params": params})
    return twin, extra


def step_cost(device: Device, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """(bytes of optimizer state, transient bytes of a step), from a step of a stand-in."""
    twin, extra = _stand_in(optimizer)
    copies = device.own_bytes(local(extra))
    try:
        _step(twin)  # the first step may import and compile: not part of what a step takes
        state = device.own_bytes(state_tensors(twin))
        device.give_back_cache()
        device.start_peak()
        before = device.bytes()
        _step(twin)
        transient = max(0, device.peak_bytes() - before)
    except (TypeError, RuntimeError, ValueError):  # a step that needs a closure: what Adam would take
        params = device.own_bytes(local(t for g in optimizer.param_groups for t in g["params"]))
        return 2 * params, params
    return state, min(transient, 2 * copies)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """The class's own step: a scheduler's wrapper on the instance does not count it."""
    type(optimizer).step(optimizer)


def measure_floor(
    device: Device, baseline: int, optimizer: torch.optim.Optimizer, one_pass: Callable[[], None]
) -> Floor:
    """Runs one_pass twice (what models make on first use stays behind the first) and a step of a stand-in.

    The floor is what the process holds outside the pool afterwards, with its peaks, plus the optimizer
    state that the first real step will add.
    """
    one_pass()
    device.start_peak()
    one_pass()
    pool = device.pool
    pool.trim(0)
    device.give_back_cache()  # what the passes left there is no floor
    before = device.bytes() - (pool.resident() if pool.capped else 0)
    owned = device.own_bytes(state_tensors(optimizer))
    state, step_peak = step_cost(device, optimizer)
    return Floor(max(0, before - baseline) + max(0, state - owned) + step_peak + NOISE, state, step_peak)
