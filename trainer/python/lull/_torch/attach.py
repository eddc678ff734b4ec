"""attach: finds out what there is to work with and puts an Elastic together."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lull._agent import Agent
from lull._arena import UNATTACHED
from lull._config import Config
from lull._errors import RuntimeRefusal
from lull._greeting import say_bytes
from lull._show import show
from lull._torch.at_rest import wait_at_exit
from lull._torch.compiled import refuse_compiled
from lull._torch.cpu import Cpu, MallocPool
from lull._torch.cuda import Cuda
from lull._torch.device import Device
from lull._torch.dry import state_tensors
from lull._torch.elastic import Elastic
from lull._torch.foreign import refuse_hooks
from lull._torch.meeting import Meeting, stuck_after
from lull._torch.ranked import RankedElastic
from lull._torch.segments import find_segments
from lull._torch.sharded import find_shards, local
from lull._torch.sharded_elastic import ShardedElastic
from lull._torch.single import PLACE, refuse_wrapped
from lull._torch.spread import Spread, spread_of, unwrap
from lull._torch.tail import Tail
from lull._torch.trained import trained

_log = logging.getLogger("lull")

_SWITCH_S = 2e-4
"""The interpreter lock changes hands within this: an order's thread gets it while operators run."""

_HELLO_S = 1.0
"""Seconds that the first backward waits for a sidecar whose socket exists, to train under its budget."""


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    blocks: Sequence[torch.nn.Module] | None = None,
    budget: int | str | None = None,
    min_budget: int | str | None = None,
    socket: str | None = None,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    release: str | None = None,
    partition: str = "checked",
    on_drain: Callable[[], None] | None = None,
    tail: int = 0,
    tail_tokens: int = 0,
) -> Elastic:
    """Makes training elastic: returns the handle whose backward() replaces loss.backward().

    `blocks` are the modules whose saved tensors can be emptied and computed again (found if not given).
    `budget` is the bytes of activation memory while no sidecar has been seen, `min_budget` what to go to
    when the sidecar is gone, `socket` the sidecar's address ("" for none), `release` how orders are met.
    Everything not given comes from the environment (LULL_SOCKET and so on), then from defaults.
    `partition` is "checked": the first batch's loss is compared with its samples' losses, and refused if
    microbatches would change the gradient; or "trusted", to accept that.
    `tail` is how many samples at a time go through what comes after the last block (norm, head and loss), forward and
    backward, so that their activations, logits above all, are those of so many samples; 0 for the whole microbatch.
    `tail_tokens` takes so many tokens of each at a time, for a loss that adds up over tokens or divides by `weights` by
    token. Both are part of the partition, and loss_fn then runs once more for each such part (docs/TRAINING.md, "The
    tail").
    `on_drain` is called on the agent's thread when the sidecar asks for a checkpoint.

    Random numbers in the model come out as without Lull if they are drawn from the default generators of
    torch, random or numpy.random. A torch.Generator, random.Random or numpy Generator object that the model
    holds itself is not replayed: use none of them in the blocks. One process trains one model here: a second
    attach is refused until the first is closed.

    Where torch.distributed has several ranks, each attaches, and a batch is that of all of them (docs/TRAINING.md,
    "Several ranks"); `model` may be in DistributedDataParallel, or sharded by fully_shard (FSDP2). `world=1` (with
    rank=0) makes each rank a job of its own. FullyShardedDataParallel and other wrappers are refused.
    """
    os.environ.pop(UNATTACHED, None)
    if partition not in ("checked", "trusted"):
        raise RuntimeRefusal(f"attach partition: got {partition!r}, want checked or trusted; nothing is attached")
    for name, value, what in (("tail", tail, "samples"), ("tail_tokens", tail_tokens, "tokens")):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise RuntimeRefusal(f"attach {name}: got {value!r}, want 0 or a number of {what}; nothing is attached")
    config = Config.from_env(
        socket=socket, job=job, rank=rank, world=world, budget=budget, min_budget=min_budget, release=release
    )
    show(config.log)
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner  # accelerate's has one inside, which takes the steps and their hooks
    model, ddp = unwrap(model)
    shards = find_shards(model)
    refuse_wrapped(model, sharded=shards is not None)
    over = shards.group if shards is not None else None
    spread = spread_of(model, ddp, config.world, alone=world == 1, sharded_over=over)
    _refuse_other_rank(spread, rank, world)
    refuse_hooks(model, trained(model, optimizer), trusted=partition == "trusted")
    segments = find_segments(model, blocks)
    refuse_compiled(model, segments)
    PLACE.refuse_if_taken()
    device = _device_of(model)
    _warm(device)
    own = [*model.parameters(), *model.buffers(), *state_tensors(optimizer)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    baseline = max(0, device.bytes() - device.own_bytes(local([*own, *grads])))
    if isinstance(device.pool, MallocPool):
        _warn_slow(device.pool)
    make: Callable[..., Elastic] = Elastic
    if spread is not None:
        wait_at_exit()
        name, job = spread.agree([uuid.uuid4().hex, config.job])
        config = replace(config, job=job, rank=spread.rank, world=spread.world)
        stuck_s = stuck_after(spread.group, device.kind)
        meeting = Meeting(
            spread.store(name), spread.rank, spread.world, stuck_s=stuck_s, per_batch=1 if shards is None else 2
        )
        make = partial(RankedElastic, spread=spread, meeting=meeting)
        if shards is not None:
            make = partial(ShardedElastic, shards=shards, spread=spread, meeting=meeting)
    own_budget = config.budget if config.budget is not None else device.total() // 2
    elastic = make(
        model,
        optimizer,
        device,
        segments,
        release=config.release,
        budget=own_budget,
        min_budget=config.min_budget,
        baseline=baseline,
        trusted=partition == "trusted",
        on_drain=on_drain,
        tail=Tail(tail, tail_tokens) if tail or tail_tokens else None,
    )
    elastic.on_close = _switch_fast()
    PLACE.take(elastic)
    if config.socket:
        own_dice = random.Random()  # the agent's pauses draw nothing from what the model draws from
        elastic.use_agent(Agent(config, elastic, rng=own_dice.random), _wait_for(config))
    else:
        _log.info(
            "no sidecar is looked for (LULL_SOCKET or socket= is empty): training alone with a budget of %s, memory "
            "from %s",
            say_bytes(own_budget),
            device.pool.name,
        )
    return elastic


def _refuse_other_rank(spread: Spread | None, rank: int | None, world: int | None) -> None:
    """Raises RuntimeRefusal where arguments say another rank than the process group."""
    if spread is not None and (rank, world) not in ((None, None), (spread.rank, spread.world)):
        raise RuntimeRefusal(
            f"attach rank: got rank={rank} and world={world}, want {spread.rank} and {spread.world} as in the process "
            "group, or neither; nothing is attached"
        )


def _switch_fast() -> Callable[[], None]:
    """Shortens the interpreter's switch interval; what it returns puts the old one back if nobody else has."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    ours = sys.getswitchinterval()

    def restore() -> None:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)

    return restore


def _wait_for(config: Config) -> Callable[[Agent], None]:
    """Waits a moment for the first budget where a sidecar seems to be."""

    def wait(agent: Agent) -> None:
        deadline = time.monotonic() + _HELLO_S
        while _seems_there(config.socket) and not agent.connected and time.monotonic() < deadline:
            time.sleep(0.005)

    return wait


def _seems_there(socket: str) -> bool:
    """Whether a connection may come. Where it cannot be looked at, the agent says why."""
    try:
        return Path(socket).exists()
    except OSError:
        return False


def _device_of(model: torch.nn.Module) -> Device:
    places = {p.device for p in model.parameters()}
    if len(places) != 1:
        raise RuntimeRefusal(
            f"attach model: parameters on {sorted(map(str, places)) or 'no device'}, want one device; "
            "nothing is attached"
        )
    place = places.pop()
    if place.type == "cpu":
        return Cpu()
    if place.type == "cuda":
        return Cuda(place.index or 0)
    raise RuntimeRefusal(f"attach model: parameters on {place}, want cpu or cuda; nothing is attached")


def _warm(device: Device) -> None:
    """Imports what the first optimizer step would: it belongs to the baseline, not to the floor."""
    param = torch.nn.Parameter(torch.zeros(1, device=device.kind))
    param.grad = torch.zeros_like(param)
    torch.optim.AdamW([param]).step()


def _warn_slow(pool: MallocPool) -> None:
    rate = pool.release_rate() / 2**30
    warnings.warn(
        f"lull.attach: no native arena in this process; memory goes back through malloc at {rate:.1f} GiB/s and "
        "the ceiling is kept only between operators; start with `python -m lull.run` for both",
        RuntimeWarning,
        stacklevel=3,
    )
