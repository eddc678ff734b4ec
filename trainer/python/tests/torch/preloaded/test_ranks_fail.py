"""A rank that dies, fails, starves or is called otherwise: the others are told which, and the batch leaves no trace."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Recorder, pair_loss
from ranks_rig import Answer, close, run, values

import lull

pytestmark = pytest.mark.cpu

Pair = tuple[torch.Tensor, torch.Tensor]


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def pair(rank: int, size: int = 8) -> Pair:
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(size, 8, generator=draw), torch.randint(0, 4, (size,), generator=draw)


def recorder(model: nn.Module, **options: Any) -> Recorder:
    return Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"budget": 64 * MIB, **options})


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def state_of(model: nn.Module) -> list[torch.Tensor]:
    """All that a batch could leave a trace in; .grad must be there."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(grads) == len([*model.parameters()])
    return [t.clone() for t in (*model.parameters(), *model.buffers(), *grads, torch.get_rng_state())]


def loses_a_rank(rank: int, when: str) -> Any:
    """The second batch, with gradients of the first one there: rank 1 is killed in it."""
    model = net()
    rec = recorder(nn.parallel.DistributedDataParallel(model))
    rec.elastic.meeting.silent_s = 6.0
    loss = pair_loss(model)
    rec.elastic.backward(pair(rank), loss)
    before = state_of(model)
    if rank == 1 and when == "exchange":
        dist.all_reduce = lambda *args, **named: kill_me()

    def second(part: Pair) -> torch.Tensor:
        if rank == 1 and when == "microbatch":
            kill_me()
        return loss(part)

    began = time.monotonic()
    try:
        rec.elastic.backward(pair(rank + 10), second)
    except lull.RankError as error:
        took = time.monotonic() - began
        same = all(map(torch.equal, before, state_of(model)))
        return error.ranks, str(error), took, same
    return None


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ("microbatch", "no sign of life for "),
        ("exchange", "adding up the gradients of batch 2 broke: its process"),
    ],
)
def test_a_rank_that_dies_is_named_and_the_batch_leaves_no_trace(when: str, text: str) -> None:
    answers = run(4, loses_a_rank, when)
    assert answers[1] == Answer()
    for rank in (0, 2, 3):
        ranks, said, took, same = values([answers[rank]])[0]
        assert ranks == (1,), said
        assert said.startswith("elastic.backward rank 1: " + text)
        assert said.endswith("; gradients, buffers and random state are as before the batch")
        assert took < 30
        assert same


def fails_once(rank: int) -> Any:
    model = net()
    rec = recorder(model)
    loss = pair_loss(model)
    rec.elastic.backward(pair(rank), loss)
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.clone()  # gradients that are no buffer of ours
    before = state_of(model)

    def bad(part: Pair) -> torch.Tensor:
        if rank == 0:
            raise ValueError("a bad sample")
        return loss(part)

    try:
        rec.elastic.backward(pair(rank + 10), bad)
        error: Any = None
    except (ValueError, lull.RankError) as caught:
        error = caught
    same = all(map(torch.equal, before, state_of(model)))
    rec.elastic.backward(pair(rank + 20), loss)
    after = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    close(rec.elastic)
    return type(error).__name__, str(error), same, after


def test_a_loss_that_raises_on_one_rank_is_told_to_the_others_and_training_goes_on() -> None:
    first, second = values(run(2, fails_once))
    assert first[:2] == ("ValueError", "a bad sample")
    assert second[:2] == (
        "RankError",
        "elastic.backward rank 0: failed in batch 2 (ValueError: a bad sample), want all to end it; gradients, buffers "
        "and random state are as before the batch",
    )
    assert first[2]
    assert second[2]
    assert all(map(torch.equal, first[3], second[3]))


def leaves(rank: int) -> Any:
    model = net()
    rec = recorder(model)
    rec.elastic.backward(pair(rank), pair_loss(model))
    if rank == 1:
        rec.elastic.close()
        return "left"
    rec.elastic.backward(pair(rank), pair_loss(model))
    return None


def test_a_rank_that_leaves_earlier_is_named_at_once() -> None:
    first, second = run(2, leaves)
    assert second.value == "left"
    assert first.ranks == (1,)
    assert "has closed its handle or ended, want all 2 ranks in batch 2" in first.text


def calls(rank: int, how: Callable[[int], dict[str, Any]], model: Callable[[int], nn.Module]) -> Any:
    made = model(rank)
    rec = recorder(made)
    rec.elastic.backward(loss_fn=pair_loss(made), **{"batch": pair(rank), **how(rank)})


def alike(rank: int) -> nn.Module:
    return net()


def differently(rank: int) -> nn.Module:
    made = net()
    with torch.no_grad():
        made[0].weight[0, 0] += rank
    return made


@pytest.mark.parametrize(
    ("how", "model", "text"),
    [
        (lambda rank: {"reduction": ["mean", "sum"][rank]}, alike, "ranks call it differently (rank 0: mean"),
        (lambda rank: {"shared": True}, alike, "ranks call it differently (rank 0: mean, the same batch"),
        (lambda rank: {"shared": rank == 1}, alike, "ranks call it differently (rank 0: mean, each its own"),
        (lambda rank: {}, differently, "model: ranks train different parameters"),
    ],
    ids=["reduction", "other batches", "shared on one", "parameters"],
)
def test_ranks_that_do_not_fit_together_are_refused_on_all(how: Any, model: Any, text: str) -> None:
    for answer in run(2, calls, how, model):
        assert answer.error == "RuntimeRefusal", answer
        assert text in answer.text
        assert answer.text.endswith("; nothing was trained")


def starves(rank: int, shared: bool) -> Any:
    """The last rank has no memory in its second batch; with batches of one's own it gets some later. One sample takes
    half a megabyte, so that even that does not fit."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 1 << 17), nn.ReLU(), nn.Linear(1 << 17, 4))
    rec = recorder(model)
    loss = pair_loss(model)
    batch = (lambda n: pair(n, 32)) if shared else (lambda n: pair(10 * n + rank, 16))
    rec.elastic.backward(batch(1), loss, shared=shared)
    ran = rec.elastic.stats.samples
    if rank == 1:
        rec.order(0)
        if not shared:
            threading.Timer(2.0, rec.order, (64 * MIB,)).start()
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    rec.elastic.backward(batch(2), loss, shared=shared, scaler=scaler)
    scaler.unscale_(rec.elastic.optimizer)
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    ran = rec.elastic.stats.samples - ran
    waited = rec.elastic.stats.waited_s
    close(rec.elastic)
    model.zero_grad()
    whole = batch(2) if shared else tuple(map(torch.cat, zip(pair(20, 16), pair(21, 16), strict=True)))
    F.cross_entropy(model(whole[0]), whole[1]).backward()
    off = max(float((a - p.grad).norm() / p.grad.norm()) for a, p in zip(grads, model.parameters(), strict=True))
    return ran, waited, off


def test_a_rank_without_memory_leaves_a_shared_batch_to_the_others() -> None:
    (first, _, off), (second, waited, _) = values(run(2, starves, True))
    assert (first, second) == (32, 0)
    assert waited > 0
    assert off <= 1e-6


def test_a_rank_without_memory_is_waited_for_where_only_it_has_its_samples() -> None:
    (first, waited, off), (second, _, _) = values(run(2, starves, False))
    assert (first, second) == (16, 16)
    assert waited > 0.2
    assert off <= 1e-6


def drains(rank: int) -> Any:
    model = net()
    rec = recorder(model)
    seen = []
    for n in range(3):
        if n == 1 and rank == 1:
            rec.elastic.drain()
        rec.elastic.backward(pair(rank), pair_loss(model))
        seen.append(rec.elastic.draining)
    close(rec.elastic)
    return seen


def test_a_drain_of_one_rank_is_seen_by_all_after_the_same_batch() -> None:
    assert values(run(2, drains)) == [[False, True, True]] * 2


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {}


def refused(name: str, text: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        REFUSED[name] = make, text
        return make

    return add


@refused("SyncBatchNorm", "attach model: 1 is a SyncBatchNorm, want BatchNorm: it waits for all ranks")
def _sync_batch_norm() -> None:
    recorder(nn.SyncBatchNorm.convert_sync_batchnorm(net()))


@refused("static graph", "attach model: DistributedDataParallel has static_graph=True, want it without")
def _static_graph() -> None:
    recorder(nn.parallel.DistributedDataParallel(net(), static_graph=True))


@refused("communication hook", "attach model: DistributedDataParallel has a communication hook, want none")
def _hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    ddp = nn.parallel.DistributedDataParallel(net())
    ddp.register_comm_hook(None, allreduce_hook)
    recorder(ddp)


@refused("DDP inside", "attach model: 0 is a DistributedDataParallel, want a plain module, or one as a whole in")
def _inside() -> None:
    recorder(nn.Sequential(nn.parallel.DistributedDataParallel(net())))


@refused("collective in the loss", "elastic.backward loss_fn: it issues a collective (c10d::allreduce_), want none")
def _collective() -> None:
    model = net()

    def loss(part: Pair) -> torch.Tensor:
        found = pair_loss(model)(part)
        dist.all_reduce(found.detach())
        return found

    recorder(model).elastic.backward(pair(0), loss)


@refused("DDP that attach was not given", "elastic.backward loss_fn: it calls the model in a DistributedDataParallel")
def _another() -> None:
    model = nn.Linear(8, 4)
    ddp = nn.parallel.DistributedDataParallel(model)
    recorder(model).elastic.backward(pair(0), pair_loss(ddp))


@refused("another rank", "attach rank: got rank=5 and world=7, want ")
def _rank() -> None:
    recorder(net(), rank=5, world=7)


def is_refused(rank: int, name: str) -> None:
    REFUSED[name][0]()


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_do_is_refused_on_all(name: str) -> None:
    for answer in run(2, is_refused, name):
        assert answer.error == "RuntimeRefusal", answer.trace
        assert answer.text.startswith(REFUSED[name][1]), answer.text


def identity(rank: int, job: str) -> Any:
    """How the sidecar knows a rank."""
    model = net()
    options = {"job": job if rank == 0 else "other"} if job else {}
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), socket="/nowhere/lull.sock", **options)
    config = elastic.agent._config
    close(elastic)
    return config.job, config.rank, config.world


def test_each_rank_is_known_by_the_name_of_rank_0s_job() -> None:
    assert values(run(2, identity, "gpt")) == [("gpt", 0, 2), ("gpt", 1, 2)]


def on_its_own(rank: int) -> Any:
    model = net()
    rec = recorder(model, rank=0, world=1)
    rec.elastic.backward(pair(rank), pair_loss(model))
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_world_1_makes_each_process_a_job_of_its_own() -> None:
    first, second = values(run(2, on_its_own))
    assert not any(map(torch.equal, first, second))
