"""Measures the floor with a dry step on one sample; it leaves no trace in the model."""

from __future__ import annotations

from typing import Any

from lull._torch.dry import Floor, measure_floor
from lull._torch.leaves import known_leaves, spared
from lull._torch.micro import LossFn, Microbatches, check_loss
from lull._torch.slots import Table
from lull._torch.stats import Stats
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
        table = job._new_table()
        pool = job.device.pool
        pool.reset_peak()
        before = pool.in_use()
        try:
            with job._hooks, job._caches_off():
                if first:
                    _plain_pass(job, table, one, loss_fn)
                else:
                    job._pass(table, one, loss_fn, 1.0, None, job._look)
                    job.memory.observe(1, pool.peak() - before)
            job._movers |= snapshot.moved()
            whole = True
        finally:
            job._undo(table, snapshot, keep_made=first and whole)

    job._known = known_leaves(job._params, one)
    grads = [p.grad for p in job._params]
    job._gradients.begin_batch()
    try:
        floor = measure_floor(job.device, baseline, job.optimizer, one_pass)
        taken[0].unmake(job._movers)
    finally:
        job._gradients.end_batch(False)
        for param, grad in zip(job._params, grads, strict=True):
            param.grad = grad
        job.stats = counted
    job.device.settle(baseline + floor.bytes)
    job.orders.pool.set_cap(was)
    return floor


def _plain_pass(job: Microbatches, table: Table, one: Any, loss_fn: LossFn) -> None:
    """The first pass, outside the pool: what a model makes once stays out of what can be given back."""
    try:
        with job._hooks.outer(table):
            loss = loss_fn(one)
    finally:
        job._hooks.end_forward()
    check_loss(loss)
    with spared(job._leaves.refuse_strangers(loss, job._known or set())):
        loss.backward()  # type: ignore[no-untyped-call]
