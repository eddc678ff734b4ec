"""What runs beside the gradient while orders come: a GradScaler, and a DataLoader that forks workers."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lull
from lull._agent import Agent
from lull._config import Config
from lull._protocol import Budget

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "protocol"))
from handmade import Sidecar
from models import MIB, Gpt, Recorder, attach, plain_step, text_loss, twin

pytestmark = pytest.mark.cpu


def cut(ids: torch.Tensor, i: int, j: int) -> torch.Tensor:
    return ids[i:j]


def half_loss(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    inner = text_loss(model)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return inner(ids)

    return loss


@pytest.mark.parametrize("first_scale", [2.0**10, 2.0**40])
def test_grad_scaler_scales_skips_and_grows_as_without_orders(first_scale: float) -> None:
    """From 2**40 the first steps overflow: they are skipped and the scale is halved, exactly as in plain PyTorch."""
    torch.manual_seed(21)
    model = Gpt()
    plain = twin(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, plain))
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=first_scale, growth_interval=2) for _ in range(2))
    rec = Recorder(model, ours, budget=64 * MIB)
    rec.elastic.memory.observe(32, 24 * MIB)
    scales = []
    for i in rec.batches(6):
        ids = torch.randint(0, 256, (32, 65))
        rec.parts.clear()
        torch.manual_seed(i)
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(ids, half_loss(model), scaler=scaler)
        torch.manual_seed(i)
        loss = half_loss(plain)
        start, size = 0, len(ids)
        for count in rec.parts:
            part = loss(ids[start : start + count])
            other.scale(part if count == size else part * (count / size)).backward()
            start += count
        for s, opt in ((scaler, ours), (other, theirs)):
            s.unscale_(opt)
            params = [p for group in opt.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            s.step(opt)
            s.update()
            opt.zero_grad()
        scales.append(scaler.get_scale())
        assert scaler.state_dict() == other.state_dict()
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert torch.equal(a, b), f"{name} in step {i}"
    assert (min(scales) < first_scale) == (first_scale > 2**20), "overflow was met where it should be"
    rec.elastic.close()


class Texts(Dataset[torch.Tensor]):
    """Sample i is drawn from seed i, in whatever process."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> torch.Tensor:
        big = torch.full((1 << 20,), i)  # as large as what the arena serves in the parent
        g = torch.Generator().manual_seed(int(big[-1]))
        return torch.cat([torch.tensor([i]), torch.randint(0, 256, (65,), generator=g)])


def epoch(workers: int) -> Iterator[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: what DataLoader does
        yield from DataLoader(
            Texts(),
            batch_size=16,
            shuffle=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(4),
            multiprocessing_context="fork" if workers else None,
            timeout=60 if workers else 0,
        )


def test_workers_forked_during_orders_deliver_each_sample_once() -> None:
    torch.manual_seed(22)
    model = Gpt()
    plain = twin(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, plain))
    rec = Recorder(model, ours, budget=64 * MIB)
    rec.elastic.memory.observe(16, 12 * MIB)
    seen: list[int] = []
    parts: list[list[int]] = []
    torch.manual_seed(1)
    for turn in range(2):
        with rec.storm(turn, 2 * MIB, 32 * MIB, gap=(0.0, 0.003)):  # forks happen inside the storm
            for batch in epoch(workers=2):
                seen += batch[:, 0].tolist()
                rec.parts.clear()
                rec.elastic.backward(batch[:, 1:].clone(), text_loss(model))
                parts.append(list(rec.parts))
                ours.step()
                ours.zero_grad()
    assert sorted(seen) == sorted(2 * list(range(64)))
    torch.manual_seed(1)
    for _ in range(2):
        for batch in epoch(workers=0):
            plain_step(plain, batch[:, 1:].clone(), text_loss(plain), parts.pop(0), cut)
            theirs.step()
            theirs.zero_grad()
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b), name
    rec.elastic.close()


def test_workers_do_not_keep_the_connection_and_orders_are_met_beside_them() -> None:
    model = Gpt()
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), budget=64 * MIB)
    hand = Sidecar()
    elastic.use_agent(Agent(Config(socket="by hand"), elastic, open_transport=hand.open), lambda agent: None)
    batches = epoch(workers=2)
    ids = next(batches)[:, 1:].clone()
    over = threading.Event()
    came = threading.Event()

    def train(elastic: lull.Elastic, more: Iterator[torch.Tensor]) -> None:
        elastic.backward(ids, text_loss(model))
        came.set()
        for batch in more:
            elastic.backward(batch[:, 1:].clone(), text_loss(model))
        while not over.wait(0.001):
            elastic.backward(ids, text_loss(model))

    trainer: Any = threading.Thread(target=train, args=(elastic, batches))
    trainer.start()
    assert came.wait(60)
    line, hello = hand.welcome()
    assert hello.pid == os.getpid()
    held = []
    for n in range(1, 21):
        line.send(Budget((7 << 32) + n, (4 + n % 3 * 10) * MIB))
        ack = line.read()
        held.append((getattr(ack, "epoch", 0) - (7 << 32), getattr(ack, "held", 1 << 60)))
    assert [n for n, _ in held] == list(range(1, 21))
    assert all(bytes <= (4 + n % 3 * 10) * MIB for n, bytes in held)
    over.set()
    trainer.join()
    fresh = epoch(workers=2)
    next(fresh)  # two live children, forked while the connection was open
    began = time.monotonic()
    elastic.close()
    line.ended()
    assert time.monotonic() - began < 15, "the end of the connection waited for a child"
    del fresh
    hand.close()
