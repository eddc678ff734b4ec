"""FSDP2: a model that fully_shard has sharded trains to the gradients of one pass, whatever orders come to a rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).parent))
from cases import ONE_PASS, Case, pair_loss, texts, vectors
from models import MIB, Gpt, Mlp, Recorder, text_loss
from ranks_rig import Answer, close, run, values
from test_one_pass import widened
from test_ranks import SIZE, apart, cut_for
from test_ranks_fail import kill_me

import lull
from lull._torch.sharded import Shards, _refuse_policies, piece

pytestmark = pytest.mark.cpu

CASES: dict[str, tuple[Case, bool]] = {
    "transformer": (ONE_PASS["transformer"], False),
    "mean over tokens": (ONE_PASS["mean over tokens"], False),
    "checkpointed blocks, shared batch": (ONE_PASS["user checkpointing"], True),
    "sum over samples": (ONE_PASS["sum over samples"], False),
}
"""The case, and whether all ranks share the batch."""


def sharded(model: nn.Module, *, over: int | None = None, **options: Any) -> nn.Module:
    """Each block by itself, and what is left with the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (over or torch.distributed.get_world_size(),))
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def start(case: Case) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(3)
    model = case.make().double()
    return model, [widened(case.draw(SIZE), True) for _ in range(3)]


def one_pass(rank: int) -> dict[str, Any]:
    """Gradients of two batches together, parameters after the step, and the gradients of a third batch."""
    found = {}
    for name, (case, _) in CASES.items():
        model, batches = start(case)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for batch in batches[:2]:
            case.loss_of(model)(batch).backward()
        grads = whole(model)
        optimizer.step()
        optimizer.zero_grad()
        case.loss_of(model)(batches[2]).backward()
        found[name] = grads, [p.detach().clone() for p in model.parameters()], whole(model)
    return found


def whole(model: nn.Module) -> list[torch.Tensor | None]:
    """Gradients; those of shards put together, which is a collective."""
    return [None if p.grad is None else getattr(p.grad, "full_tensor", p.grad.clone)() for p in model.parameters()]


def one_rank(rank: int, world: int) -> dict[str, Any]:
    found = {}
    for name, (case, shared) in CASES.items():
        model, batches = start(case)
        model = sharded(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        rec = Recorder(model, optimizer, budget=64 * MIB)
        rec.elastic.memory.observe(SIZE, 24 * MIB)  # large microbatches from the start, so that orders bite

        def train(i: int, rec: Any = rec, case: Case = case, batches: Any = batches, shared: bool = shared) -> Any:
            mine = batches[i] if shared else cut_for(rank, world, batches[i])
            with rec.storm(10 * i + rank, 2 * MIB, 48 * MIB):
                return rec.elastic.backward(mine, case.loss_of(rec.elastic.model), shared=shared, **case.call(mine))

        train(0)
        train(1)
        grads = whole(model)
        optimizer.step()
        optimizer.zero_grad()
        after = [p.full_tensor().detach().clone() for p in model.parameters()]
        with torch.no_grad():
            model.eval()(
                batches[0][:1] if isinstance(batches[0], torch.Tensor) else batches[0][0][:1]
            )  # FSDP's own way
            model.train()
        loss = train(2).item()
        local = sum(p.to_local().numel() for p in model.parameters()) / sum(p.numel() for p in model.parameters())
        stats = rec.elastic.stats
        bites = stats.dropped + stats.discards + stats.recomputed
        found[name] = grads, after, whole(model), loss, local, stats.samples, bites
        close(rec.elastic)
    return found


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return values(run(1, one_pass))[0]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_sharded_gradients_are_those_of_one_pass(world: int, reference: dict[str, Any]) -> None:
    """Two batches before a step, and one after it; in between each rank evaluates through fully_shard's own hooks."""
    ranks = values(run(world, one_rank, world))
    bitten = 0
    for name, (grads, after, later) in reference.items():
        for rank, found in enumerate(ranks):
            ours, params, last, loss, local, _, bites = found[name]
            assert apart(ours, grads) <= 1e-12, f"{name}, rank {rank} of {world}"
            assert apart(params, after) <= 1e-9, f"{name}: parameters, rank {rank} of {world}"
            assert apart(last, later) <= 1e-9, f"{name}: the third batch, rank {rank} of {world}"
            assert loss == ranks[0][name][3]
            assert world == 1 or local < 0.75, "it is sharded between batches"
            bitten += bites
        assert sum(found[name][5] for found in ranks) == 3 * SIZE, f"{name}: each sample once"
    assert bitten > 0, "the storms never bit"


def same_partition(rank: int, stormy: bool) -> Any:
    """Microbatches of one sample each, with dropout, under orders or not."""
    torch.manual_seed(3)
    model = sharded(Gpt())
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    rec.elastic.backward(texts(2), text_loss(model))
    torch.manual_seed(50 + rank)
    batch = texts(4 + rank)
    rec.elastic._most = 1
    rec.elastic._next_size = lambda left: 1  # type: ignore[method-assign]
    issued: list[str] = []
    watch = _Collectives(issued)
    inside = rec.elastic._run

    def watched(*args: Any) -> Any:
        with watch:
            return inside(*args)

    rec.elastic._run = watched  # type: ignore[method-assign]
    loss_fn = text_loss(model)

    def stormy_loss(part: Any) -> torch.Tensor:
        """All of the blocks are full: one order that bites for sure, beside those that come when they come."""
        loss = loss_fn(part)
        rec.order(MIB)
        rec.order(8 * MIB)
        return loss

    if stormy:
        with rec.storm(rank, MIB, 8 * MIB, gap=(0.0002, 0.004)):
            rec.elastic.backward(batch, stormy_loss)
    else:
        rec.elastic.backward(batch, loss_fn)
    stats = rec.elastic.stats
    found = [g.clone() for g in whole(model)], stats.dropped + stats.discards, issued
    close(rec.elastic)
    return found


class _Collectives(torch.utils._python_dispatch.TorchDispatchMode):
    """Names every collective that is issued inside."""

    def __init__(self, issued: list[str]) -> None:
        super().__init__()
        self._issued = issued

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in getattr(func, "namespace", ""):
            self._issued.append(func.name())
        return func(*args, **(kwargs or {}))


def test_storm_of_orders_changes_no_bit_and_no_microbatch_issues_a_collective() -> None:
    still = values(run(2, same_partition, False))
    stormy = values(run(2, same_partition, True))
    for (ours, bites, issued), (theirs, _, _) in zip(stormy, still, strict=True):
        assert all(map(torch.equal, ours, theirs))
        assert bites > 0, "the storm never bit"
        assert issued == []


def chunked(rank: int) -> Any:
    """Each rank's own batch, its tail a sample at a time, under orders."""
    torch.manual_seed(3)
    model = sharded(Gpt(drop=0.0).double())
    batch = texts(10)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB, tail=1)
    with rec.storm(rank, 4 * MIB, 32 * MIB):
        rec.elastic.backward(batch[:3] if rank else batch[3:], text_loss(model))
    found = whole(model)
    close(rec.elastic)
    return found


def test_a_tail_in_chunks_is_one_pass_over_shards_too() -> None:
    torch.manual_seed(3)
    model = Gpt(drop=0.0).double()
    text_loss(model)(texts(10)).backward()
    for ours in values(run(2, chunked)):
        assert apart(ours, whole(model)) <= 1e-12


def starved(rank: int) -> Any:
    """A shared batch of which one rank can compute nothing."""
    torch.manual_seed(3)
    model = sharded(Gpt(drop=0.0).double())
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    batch = texts(6)
    rec.elastic.backward(batch, text_loss(model), shared=True)
    model.zero_grad()
    before = rec.elastic.stats.samples
    if rank == 1:
        rec.order(0)
    rec.elastic.backward(batch, text_loss(model), shared=True)
    found = rec.elastic.stats.samples - before, whole(model)
    close(rec.elastic)
    return found


def test_a_rank_whose_budget_is_zero_takes_part() -> None:
    (computed, ours), (nothing, theirs) = values(run(2, starved))
    assert (computed, nothing) == (6, 0)
    torch.manual_seed(3)
    model = Gpt(drop=0.0).double()
    text_loss(model)(texts(6)).backward()
    assert apart(ours, whole(model)) <= 1e-12
    assert all(map(torch.equal, ours, theirs))


def reported(rank: int) -> Any:
    """The floor of a model of 8 MiB, and what of it is whole parameters."""
    torch.manual_seed(3)
    model = sharded(Mlp(256, 4, drop=0.0))
    rec = Recorder(model, torch.optim.AdamW(model.parameters()), budget=64 * MIB)
    rec.elastic.backward(vectors(4), pair_loss(model))
    size = sum(p.numel() * 4 for p in model.parameters())
    found = rec.elastic.hello().floor, size, rec.elastic.bytes_by_category()["parameters"]
    close(rec.elastic)
    return found


def test_the_floor_says_that_parameters_are_whole_while_a_batch_runs() -> None:
    for floor, size, now in values(run(2, reported)):
        assert floor >= 3 * size, "whole parameters, and two buffers for their gradients"
        assert now < 0.6 * size, "between batches only the shard is there"


def test_modules_within_one_are_gathered_by_themselves() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Sequential(nn.Linear(4, 4, bias=False)))
    shards = Shards.__new__(Shards)
    shards._named, shards._modules = {}, [model, model[0], model[1]]
    assert shards.beside() == 8 * 8 * 4
    shards._modules = [model, model[1]]
    assert shards.beside() == 8 * 8 * 4
    shards._modules = [model]
    assert shards.beside() == (8 * 8 + 4 * 4) * 4


def test_an_older_fully_shard_is_refused_by_name() -> None:
    older = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=None))
    with pytest.raises(
        lull.RuntimeRefusal, match=r"attach model: it is fully_shard's of PyTorch .*, want PyTorch 2.13"
    ):
        _refuse_policies(older)


def failing(rank: int, way: str) -> Any:
    """Rank 1 raises or dies in its second batch; then, if it lives, all train on."""
    torch.manual_seed(3)
    model = sharded(Mlp(64, 2, drop=0.0).double())
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    rec.elastic.meeting.silent_s = 2.5
    batch = torch.randn(4, 64).double(), torch.randint(0, 8, (4,))
    rec.elastic.backward(batch, pair_loss(model))
    kept = whole(model)

    def loss_fn(pair: Any) -> torch.Tensor:
        if rank == 1 and way == "microbatch":
            kill_me()
        if rank == 1:
            raise ValueError("no such sample")
        return pair_loss(model)(pair)

    if rank == 1 and way == "gather":
        rec.elastic._shards.gather = kill_me
    if rank == 1 and way == "gathered":

        def gather() -> None:
            del rec.elastic._shards.gather
            with rec.elastic._shards.whole():
                raise ValueError("no such sample")

        rec.elastic._shards.gather = gather

    try:
        rec.elastic.backward(batch, loss_fn)
        said = ("", "", ())
    except Exception as error:
        said = type(error).__name__, str(error), getattr(error, "ranks", ())
    if way not in ("raises", "gathered"):
        return said
    same = all(map(torch.equal, kept, whole(model)))
    rec.elastic.backward(batch, pair_loss(model))
    twice = apart(whole(model), [2 * g for g in kept])
    close(rec.elastic)
    return said, same, twice


@pytest.mark.parametrize("way", ["raises", "gathered"])
def test_a_rank_that_raises_leaves_no_trace_and_all_go_on(way: str) -> None:
    (other, same, twice), (own, also, again) = values(run(2, failing, way))
    assert own[:2] == ("ValueError", "no such sample")
    assert other[0] == "RankError"
    assert other[2] == (1,)
    assert "failed in batch 2 (ValueError: no such sample)" in other[1]
    assert same
    assert also
    assert max(twice, again) <= 1e-12


@pytest.mark.parametrize(
    ("when", "text"),
    [("microbatch", "no sign of life for "), ("gather", "gathering the parameters of batch 2 broke: its process")],
)
def test_a_rank_that_dies_is_named(when: str, text: str) -> None:
    survivor, dead = run(2, failing, when)
    assert dead == Answer()
    kind, said, ranks = values([survivor])[0]
    assert (kind, ranks) == ("RankError", (1,)), said
    assert said.startswith("elastic.backward rank 1: " + text)


def refused(rank: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    def told(make: Callable[[], nn.Module], **options: Any) -> str:
        model = make()
        try:
            Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB, **options)
        except lull.RuntimeRefusal as error:
            return str(error)
        return ""

    grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards"))
    return [
        told(lambda: sharded(nn.Linear(4, 4), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))),
        told(lambda: sharded(nn.Linear(4, 4), offload_policy=CPUOffloadPolicy(pin_memory=False))),
        told(lambda: fully_shard(nn.Linear(4, 4), mesh=grid)),
        told(lambda: sharded(nn.Linear(4, 4)), rank=0, world=1),
    ]


def test_what_lull_cannot_keep_right_is_refused_by_name() -> None:
    for rank, (policy, offload, grid, alone) in enumerate(values(run(2, refused))):
        assert policy.startswith(
            "attach model: fully_shard was given a mp_policy, want torch.autocast in loss_fn: its h"
        )
        assert offload.startswith(
            "attach model: fully_shard was given an offload_policy, want parameters on the device"
        )
        assert grid.startswith(
            "attach model: parameter weight is placed as [Replicate(), Shard(dim=0)] over a mesh of 2"
        )
        assert alone.startswith(f"attach rank: got rank=0 and world=1, want {rank} and 2 as in the process group")


def unreduced(rank: int) -> Any:
    """The user's own backward pass of one rank, not added up."""
    torch.manual_seed(3)
    model: Any = sharded(nn.Linear(256, 8))
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    rec.elastic.backward(vectors(4), pair_loss(model))
    model.set_requires_gradient_sync(False)
    pair_loss(model)(vectors(4)).backward()
    try:
        rec.elastic.backward(vectors(4), pair_loss(model))
        said = ""
    except Exception as error:
        said = str(error)
    close(rec.elastic)
    return said


def test_a_gradient_that_was_never_added_up_is_refused() -> None:
    for said in values(run(2, unreduced)):
        assert "holds a gradient of this rank alone, since fully_shard was told not to add it up" in said


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_pieces_are_those_of_torch_chunk(world: int, rows: int) -> None:
    tensor = torch.arange(rows * 3).view(rows, 3)
    chunks = torch.chunk(tensor, world)
    for rank in range(world):
        ours = piece(tensor, 0, rank, world)
        assert torch.equal(ours, chunks[rank]) if rank < len(chunks) else ours.numel() == 0
