"""Measures the floor with a dry step on the smallest microbatch; it leaves no trace in the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._greeting import say_bytes
from lull._torch.batch import anew, tensors_in
from lull._torch.dry import Floor, measure_floor
from lull._torch.leaves import known_leaves, refuse_hidden, spared
from lull._torch.micro import Microbatches, ran_out
from lull._torch.passes import LossFn, Micro, check_loss
from lull._torch.slots import Table
from lull._torch.stats import Stats
from lull._torch.twice import refuse_fickle
from lull._torch.undo import Snapshot


def measure(job: Microbatches, baseline: int, one: Any, loss_fn: LossFn) -> Floor:
    """The floor beyond `baseline`, in bytes; from then on the pool's books begin above it.

    The memory model has its first observation afterwards, and the buffers that a pass changes are known.
    """
    was = job.orders.ceiling
    counted, job.stats = job.stats, Stats()
    taken: list[Snapshot] = []

    def one_pass() -> None:
        first = not taken
        snapshot = Snapshot(job.device, job.model, None)
        taken.append(snapshot)
        whole = False
        table = job.new_table()
        try:
            with job.hooks, job.caches_off():
                if first:
                    _plain_pass(job, table, anew(one), loss_fn)
                else:
                    _measured_pass(job, table, anew(one), loss_fn)
            job.movers |= snapshot.moved()
            whole = True
        finally:
            job._undo(table, snapshot, keep_made=first and whole)

    job._known = known_leaves(job._params, tensors_in(one))
    grads = [p.grad for p in job._params]
    job._gradients.begin_batch()
    try:
        floor = measure_floor(job.device, baseline, job.optimizer, one_pass)
        taken[0].unmake(job.movers)
    finally:
        job._gradients.end_batch(False)
        for param, grad in zip(job._params, grads, strict=True):
            param.grad = grad
        job.stats = counted
    job.device.give_back_cache()  # what the dry step left there is no floor
    job.device.settle(baseline + floor.bytes)
    job.orders.pool.set_cap(was)
    return floor


def _measured_pass(job: Microbatches, table: Table, one: Any, loss_fn: LossFn) -> None:
    """The second pass: what the smallest microbatch takes in the pool, and whether its blocks may run again."""
    pool = job.device.pool
    pool.trim(0)
    pool.reset_peak()
    before, there = pool.in_use(), pool.resident()
    used, resident = 0, 0

    def look(roots: Sequence[torch.Tensor]) -> None:
        nonlocal used, resident
        job._look(roots)
        used, resident = pool.peak(), pool.peak_resident()
        pool.set_cap(1 << 62)  # with every slot full a block that runs again may need more than that
        try:
            refuse_fickle(table)
        finally:
            pool.trim(0)
            pool.set_cap(job.orders.ceiling)
            pool.reset_peak()

    try:
        job._pass(table, Micro(one, loss_fn, lambda start, stop, tokens=None: 1.0, job._fewest), look)
    except Exception as error:
        if pool.capped and ran_out(error):
            raise RuntimeRefusal(
                f"elastic.backward budget: a dry step of {job._fewest} does not fit into "
                f"{say_bytes(job.orders.ceiling)}, want more in budget= or LULL_BUDGET (a number without a unit is "
                "bytes); nothing was trained"
            ) from error
        raise
    job.memory.observe(job._fewest, max(used, pool.peak()) - before)
    job._resident = max(resident, pool.peak_resident()) - there


def _plain_pass(job: Microbatches, table: Table, one: Any, loss_fn: LossFn) -> None:
    """The first pass, outside the pool: what a model makes once stays out of what can be given back."""
    try:
        with job.hooks.outer(table):
            loss = loss_fn(one)
    finally:
        job.hooks.end_forward()
    check_loss(loss)
    refuse_hidden(loss, job._known)
    with spared(job._leaves.refuse_strangers([loss], job._known)):
        loss.backward()  # type: ignore[no-untyped-call]
