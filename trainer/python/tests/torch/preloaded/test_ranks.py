"""Gradients of several ranks are those of one pass over their batches together, whatever orders come to each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from cases import ONE_PASS, Case, pair_loss, vectors
from models import MIB, Mlp, Recorder
from ranks_rig import close, run, values
from test_exact import cut
from test_one_pass import widened

from lull._torch import at_rest, exchange

pytestmark = pytest.mark.cpu

SIZE = 18
SIZES = {1: [18], 2: [5, 13], 3: [3, 7, 8], 4: [2, 3, 5, 8]}
"""Samples of each rank's own batch, by the number of ranks."""


class Branches(nn.Module):
    """Each sample goes through one of two heads; a parameter that no sample needs gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp(drop=0.0)
        self.left, self.right, self.never = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        left = x[:, 0] < 0
        out = torch.zeros_like(y)
        for side, head in ((left, self.left), (~left, self.right)):
            if side.any():
                out[side] = head(y[side])
        return out


def sorted_vectors(n: int) -> Any:
    """Those for the left head first: most ranks see samples of one kind only."""
    x, y = vectors(n)
    return x[x[:, 0].argsort()], y


BRANCHES = Case(Branches, sorted_vectors, pair_loss, SIZE)


@dataclass(frozen=True)
class Way:
    case: Case
    wide: bool = True
    wrapped: bool = True
    shared: bool = False


WAYS: dict[str, Way] = {
    "transformer in DDP, own batches": Way(ONE_PASS["transformer"]),
    "transformer, shared batch, float32": Way(ONE_PASS["transformer"], wide=False, wrapped=False, shared=True),
    "mean over tokens, own batches": Way(ONE_PASS["mean over tokens"], wrapped=False),
    "mean over tokens in DDP, shared batch": Way(ONE_PASS["mean over tokens"], shared=True),
    "sum over samples in DDP, own batches": Way(ONE_PASS["sum over samples"]),
    "mean over samples in DDP, own batches, float32": Way(ONE_PASS["mlp"], wide=False),
    "parameters that some ranks do not reach": Way(BRANCHES),
}


def start(way: Way, seed: int = 3) -> tuple[nn.Module, list[Any], torch.optim.Optimizer]:
    """The model, two batches and an optimizer; the same in every process."""
    torch.manual_seed(seed)
    model = way.case.make()
    model = model.double() if way.wide else model
    batches = [widened(way.case.draw(SIZE), way.wide) for _ in range(2)]
    return model, batches, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def one_pass(rank: int) -> dict[str, Any]:
    """Loss and gradients of each way in one process, and how far float32 is from float64."""
    found = {}
    for name, way in WAYS.items():
        model, batches, _ = start(way)
        losses = []
        for batch in batches:  # both before one step: gradients add up
            loss = way.case.loss_of(model)(batch)
            loss.backward()
            losses.append(loss.item())
        exact = start(way)[0].double()
        if not way.wide:
            for batch in batches:
                way.case.loss_of(exact)(widened(batch, True)).backward()
        found[name] = losses, gradients(model), 0.0 if way.wide else apart(gradients(model), gradients(exact))
    return found


def one_rank(rank: int, world: int) -> dict[str, Any]:
    """The same as a rank of several, under orders of its own."""
    found = {}
    for number, (name, way) in enumerate(WAYS.items()):
        model, batches, optimizer = start(way)
        called = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if way.wrapped else model
        rec = Recorder(called, optimizer, budget=64 * MIB)
        rec.elastic.memory.observe(SIZE, 24 * MIB)  # large microbatches from the start, so that orders bite
        losses = []
        for batch in batches:
            torch.manual_seed(100 + rank)  # what ranks draw is their own
            mine = batch if way.shared else cut_for(rank, world, batch)
            with rec.storm(10 * number + rank, 2 * MIB, 48 * MIB):
                losses.append(
                    rec.elastic.backward(mine, way.case.loss_of(called), shared=way.shared, **way.case.call(mine))
                )
        grads = gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        stats = rec.elastic.stats
        found[name] = (
            [loss.item() for loss in losses],
            grads,
            [p.detach().clone() for p in model.parameters()],
            (stats.samples, stats.dropped + stats.discards),
        )
        close(rec.elastic)
    return found


def cut_for(rank: int, world: int, batch: Any) -> Any:
    first = sum(SIZES[world][:rank])
    return cut(batch, first, first + SIZES[world][rank])


def apart(ours: list[torch.Tensor | None], theirs: list[torch.Tensor | None]) -> float:
    """Relative distance of all gradients together."""
    gone = size = 0.0
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            gone, size = gone + float((a.double() - b.double()).norm()) ** 2, size + float(b.double().norm()) ** 2
    return (gone / size) ** 0.5


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return values(run(1, one_pass))[0]


@pytest.mark.parametrize("world", SIZES)
def test_gradients_are_those_of_one_pass_over_all_batches(world: int, reference: dict[str, Any]) -> None:
    """And parameters are the same bits on every rank after the step."""
    ranks = values(run(world, one_rank, world))
    bitten = 0
    for name, (losses, grads, rounding) in reference.items():
        limit = 1e-12 if WAYS[name].wide else max(1e-6, 2 * rounding)
        for rank, found in enumerate(ranks):
            ours_losses, ours, params, (_, bites) = found[name]
            assert apart(ours, grads) <= limit, f"{name}, rank {rank} of {world}"
            assert ours_losses == pytest.approx(losses, rel=1e-12 if WAYS[name].wide else 1e-5), name
            assert all(map(torch.equal, params, ranks[0][name][2])), f"{name}: parameters of rank {rank} of {world}"
            assert ours_losses == ranks[0][name][0]
            bitten += bites
        samples = [found[name][3][0] for found in ranks]
        assert sum(samples) == 2 * SIZE, f"{name}: each sample once"
        assert WAYS[name].shared or samples == [2 * size for size in SIZES[world]]
    assert bitten > 0, "the storms never bit"


def statistics(rank: int) -> Any:
    """Two ranks with BatchNorm in train mode, and one of them evaluates alone in between."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    ddp = nn.parallel.DistributedDataParallel(model)
    rec = Recorder(ddp, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    sent = count_collectives()
    seen = []
    for _ in range(3):
        rec.elastic.backward(
            (torch.randn(8 if rank else 12, 8) + rank, torch.randint(0, 4, (8 if rank else 12,))), pair_loss(ddp)
        )
        seen.append([b.clone() for b in model.buffers()])
        rec.elastic.optimizer.step()
        rec.elastic.optimizer.zero_grad()
        if rank == 1:
            with torch.no_grad():
                ddp.eval()(torch.randn(4, 8))
                ddp.train()
    close(rec.elastic)
    return seen, sent


def count_collectives() -> dict[str, int]:
    """Counts what is issued from now on."""
    sent: dict[str, int] = {}
    for name in ("all_reduce", "broadcast"):
        issue: Callable[..., Any] = getattr(torch.distributed, name)

        def counted(*args: Any, _name: str = name, _issue: Callable[..., Any] = issue, **named: Any) -> Any:
            sent[_name] = sent.get(_name, 0) + 1
            return _issue(*args, **named)

        setattr(torch.distributed, name, counted)
    return sent


def test_statistics_are_alike_after_each_batch_and_sent_once() -> None:
    (first, sent), (second, _) = values(run(2, statistics))
    for ours, theirs in zip(first, second, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert sent == {"all_reduce": 3, "broadcast": 3}, "one each a batch"


def masked(rank: int) -> Any:
    """A rank whose tokens are all padding."""
    case = ONE_PASS["mean over tokens"]
    torch.manual_seed(3)
    model = case.make().double()
    batch = case.draw(8)
    if rank == 1:
        batch[4:] = 0
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    mine = batch[4:] if rank else batch[:4]
    loss = rec.elastic.backward(mine, case.loss_of(model), **case.call(mine))
    ours = gradients(model)
    model.zero_grad()
    F.cross_entropy(model(batch[:4, :-1]).flatten(0, 1), batch[:4, 1:].flatten(), ignore_index=0).backward()
    off = apart(ours, gradients(model))
    try:
        rec.elastic.backward(batch[:4], case.loss_of(model), weights=torch.zeros(4))
        error = ""
    except Exception as refused:
        error = str(refused)
    close(rec.elastic)
    return loss.item(), off, error


def test_a_rank_without_a_token_that_counts_takes_part() -> None:
    first, second = values(run(2, masked))
    assert first[0] == second[0]
    assert first[1] <= 1e-12
    assert second[1] <= 1e-12
    for _, _, error in (first, second):
        assert error.startswith("elastic.backward weights: sum over all ranks is 0, want a number above 0; nothing was")


def exchanged(rank: int) -> Any:
    """Tensors of several types, sizes and layouts, in buckets of a few hundred bytes."""
    exchange.BUCKET = 500
    torch.manual_seed(rank)
    sums = [
        torch.randn(3, 5),
        torch.randn(40, 10).t(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(300),
        torch.tensor(1.5 + rank),
        torch.randn(7).double(),
        torch.randn(0),
    ]
    mine = [t.clone() for t in sums]
    exchange.add_up(sums, torch.distributed.group.WORLD, lambda: None)
    buffers = [torch.randn(3, 2).t(), torch.tensor(rank), torch.tensor([True, rank > 0]), torch.full((2,), torch.nan)]
    versions = [b._version for b in buffers]
    exchange.send(buffers, 1, torch.distributed.group.WORLD, lambda: None)
    return mine, sums, buffers, [b._version - v for b, v in zip(buffers, versions, strict=True)]


def test_what_ranks_send_each_other_arrives_whatever_its_layout() -> None:
    (a, sums, buffers, written), (b, others, theirs, untouched) = values(run(2, exchanged))
    for left, right, ours, same in zip(a, b, sums, others, strict=True):
        assert torch.equal(ours, left + right)
        assert torch.equal(ours, same)
    assert all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(buffers, theirs, strict=True))
    assert (buffers[1].item(), buffers[2].tolist()) == (1, [True, True]), "those of rank 1"
    assert untouched == [0, 0, 0, 0]
    assert written[3] == 0, "what is equal already is not written, NaN or not"


def test_buckets_keep_types_apart_and_large_tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BUCKET", 400)
    tensors = [torch.zeros(60), torch.zeros(10).double(), torch.zeros(60), torch.zeros(500), torch.zeros(1)]
    assert [[t.numel() for t in bucket] for bucket in exchange.buckets(tensors)] == [[60], [60], [500], [1], [10]]
    assert exchange.beside([torch.zeros(10)]) == 80


def threads(rank: int) -> list[str]:
    """This rank's threads, by name."""
    model = Mlp(drop=0.0)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), 0.1))
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    close(rec.elastic)
    return names


def test_gloos_workers_have_the_name_that_is_waited_for_at_exit() -> None:
    """Another PyTorch may call them otherwise: then a process would end while they still work (at_rest.py)."""
    for names in values(run(2, threads)):
        assert any(name.startswith(at_rest.WORKER) for name in names), names
