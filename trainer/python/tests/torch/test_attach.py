"""attach refuses what it cannot keep exact, puts back what it changes, and waits for a first grant."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import pytest
import torch
import torch.nn as nn

import lull
from lull._agent import Agent
from lull._config import Config
from lull._floor import Answer
from lull._protocol import Budget
from lull._torch.attach import _seems_there
from lull._torch.single import PLACE

pytestmark = pytest.mark.cpu

MIB = 1 << 20


def attach(model: nn.Module, **options: Any) -> lull.Elastic:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lull.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"socket": "", **options})


def stub(kind: type[nn.Module]) -> nn.Module:
    """An instance without its constructor, which wants other workers."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.inner = nn.Linear(2, 2)
    return module


def test_distributed_data_parallel_around_a_part_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), stub(nn.parallel.DistributedDataParallel))
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"attach model: 1 is a DistributedDataParallel, want a plain module, or one as a whole.*nothing is att",
    ):
        attach(model)


def test_fully_sharded_models_of_the_first_kind_and_unsharded_ones_of_the_second_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fsdp = pytest.importorskip("torch.distributed.fsdp")
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(lull.RuntimeRefusal, match="the model is a FullyShardedDataParallel"):
        lull.attach(stub(fsdp.FullyShardedDataParallel), optimizer, socket="")
    if not hasattr(fsdp, "FSDPModule"):
        return

    class Sharded(fsdp.FSDPModule, nn.Linear):  # type: ignore[misc,name-defined]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return object.__new__(cls)

    with pytest.raises(lull.RuntimeRefusal, match="the model is a FSDPModule"):
        attach(Sharded(2, 2))


def test_several_ranks_without_a_process_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    want = r"attach world: got 2 ranks and no process group, want torch.distributed.init_process_group before it"
    with pytest.raises(lull.RuntimeRefusal, match=want):
        attach(nn.Linear(2, 2), world=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(lull.RuntimeRefusal, match=want):
        attach(nn.Linear(2, 2))
    attach(nn.Linear(2, 2), world=1).close()


def test_close_puts_the_switch_interval_back_unless_somebody_else_has_set_it() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.004)
        elastic = attach(nn.Linear(2, 2))
        assert sys.getswitchinterval() == pytest.approx(2e-4)
        elastic.close()
        assert sys.getswitchinterval() == pytest.approx(0.004)
        elastic = attach(nn.Linear(2, 2))
        sys.setswitchinterval(0.003)
        elastic.close()
        assert sys.getswitchinterval() == pytest.approx(0.003)
    finally:
        sys.setswitchinterval(before)


class Sidecar:
    """An agent whose sidecar comes when it is told to."""

    def __init__(self) -> None:
        self.connected = False
        self.refused = ""
        self.started = threading.Event()

    def start(self) -> None:
        self.started.set()

    def close(self) -> None:
        self.connected = False

    def request_floor(self, bytes: int, timeout: float) -> Answer:
        return Answer.GRANTED


def trained(sidecar: Sidecar, **options: Any) -> lull.Elastic:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    elastic = attach(model, budget=512 * MIB, **options)
    elastic.use_agent(sidecar, lambda agent: None)
    elastic.backward(torch.randn(4, 64), lambda x: model(x).mean())
    assert sidecar.started.is_set()
    return elastic


def test_own_budget_holds_while_no_sidecar_was_seen() -> None:
    elastic = trained(Sidecar(), min_budget=24 * MIB)
    elastic.report()
    assert elastic.orders.ceiling == 512 * MIB
    elastic.close()


@pytest.mark.parametrize("late", [True, False])
def test_welcome_without_a_grant_means_the_min_budget(late: bool) -> None:
    sidecar = Sidecar()
    sidecar.connected = not late
    elastic = trained(sidecar, min_budget=24 * MIB)
    if late:
        assert elastic.orders.ceiling == 512 * MIB
        sidecar.connected = True
        elastic.report()  # the agent's first act after a welcome
    assert elastic.orders.ceiling == 24 * MIB
    elastic.apply(Budget(1, 300 * MIB), lambda ack: None)
    elastic.report()
    assert elastic.orders.ceiling == 300 * MIB
    elastic.close()


@pytest.mark.parametrize("late", [True, False])
def test_refused_device_means_the_own_budget_again(late: bool) -> None:
    sidecar = Sidecar()
    sidecar.connected = late
    elastic = trained(sidecar, min_budget=24 * MIB)
    assert elastic.orders.ceiling == (24 if late else 512) * MIB
    sidecar.connected, sidecar.refused = False, "no such device"
    elastic.report()
    assert elastic.orders.ceiling == 512 * MIB
    elastic.apply(Budget(1, 30 * MIB), lambda ack: None)
    elastic.report()
    assert elastic.orders.ceiling == 30 * MIB, "a budget counts more than a refusal"
    elastic.close()


def test_second_attach_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    socket = str(tmp_path / "nobody.sock")
    first = attach(nn.Linear(2, 2), socket=socket)
    model = nn.Linear(2, 2)
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"attach: another lull\.attach of this process is not closed, want one at a time, since both would share "
        r"one pool with one ceiling; close\(\) that one first, or train this model without Lull; nothing is attached",
    ):
        attach(model, socket=socket)
    with pytest.raises(lull.RuntimeRefusal, match="another lull"):
        attach(model, socket=str(tmp_path / "other.sock"))
    with pytest.raises(lull.RuntimeRefusal, match="another lull"):
        attach(model)
    first.close()
    second = attach(model, socket=socket)
    second.close()


def test_closed_handle_trains_nothing_and_says_so() -> None:
    elastic = attach(model := nn.Linear(2, 2))
    elastic.close()
    with pytest.raises(lull.RuntimeRefusal, match=r"elastic\.backward: this handle is closed, want a new one"):
        elastic.backward(torch.randn(4, 2), lambda b: model(b).sum())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("socket", ["x" * 300, "loop/loop/s.sock", "closed/s.sock"])
def test_socket_that_cannot_be_looked_at_is_no_error(
    socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")

    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    if socket.startswith("closed"):
        monkeypatch.setattr(Path, "exists", denied)
    assert not _seems_there(str(tmp_path / socket))


def test_attach_that_is_refused_takes_no_place(tmp_path: Path) -> None:
    socket = str(tmp_path / "nobody.sock")
    with pytest.raises(lull.RuntimeRefusal, match="no part of the model"):
        attach(nn.Linear(2, 2), socket=socket, blocks=[nn.Linear(2, 2)])
    attach(nn.Linear(2, 2), socket=socket).close()


def test_forked_child_may_attach_for_itself(tmp_path: Path) -> None:
    first = attach(nn.Linear(2, 2), socket=str(tmp_path / "nobody.sock"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads
        child = os.fork()
    if child == 0:
        try:
            PLACE.refuse_if_taken()
        except lull.RuntimeRefusal:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    first.close()


def failing_in_the_second_microbatch(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    calls: list[int] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        if len(calls) == 2:
            raise KeyError("mine")
        return model(x).mean()

    return loss


def test_backward_that_fails_leaves_empty_gradients_empty(caplog: pytest.LogCaptureFixture) -> None:
    elastic = trained(Sidecar())
    elastic._most = 1
    elastic.optimizer.zero_grad()
    with pytest.raises(KeyError, match="mine"):
        elastic.backward(torch.randn(4, 64), failing_in_the_second_microbatch(elastic.model))
    assert all(p.grad is None for p in elastic.model.parameters())
    assert "stay added" not in caplog.text
    elastic.close()


def test_backward_that_fails_says_what_stays_added_to_earlier_gradients(caplog: pytest.LogCaptureFixture) -> None:
    elastic = trained(Sidecar())
    before = [p.grad.clone() for p in elastic.model.parameters() if p.grad is not None]
    elastic._most = 1
    x = torch.randn(4, 64)
    with pytest.raises(KeyError, match="mine"):
        elastic.backward(x, failing_in_the_second_microbatch(elastic.model))
    want = torch.autograd.grad(elastic.model(x[:1]).mean() / 4, list(elastic.model.parameters()))
    assert len(before) == 4
    for p, old, added in zip(elastic.model.parameters(), before, want, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, old + added)
    assert "it ended after 1 of 4 samples, which stay added to the gradients that .grad held before" in caplog.text
    assert "call zero_grad() before you go on, or they count twice in a second try" in caplog.text
    elastic.close()


def test_budget_below_the_min_budget_stays() -> None:
    sidecar = Sidecar()
    elastic = trained(sidecar)
    sidecar.connected = True
    elastic.orders.lower_to(1 * MIB)
    elastic._min_budget = 24 * MIB
    elastic.report()
    assert elastic.orders.ceiling == 1 * MIB
    elastic.close()


def test_agent_keeps_to_the_min_budget_from_the_welcome_to_the_first_order() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    elastic = attach(model, budget=512 * MIB, min_budget=24 * MIB)
    hand = handmade.Sidecar()
    agent = Agent(Config(socket="by hand"), elastic, open_transport=hand.open)
    elastic.use_agent(agent, lambda agent: None)
    elastic.backward(torch.randn(4, 64), lambda x: model(x).mean())
    assert elastic.orders.ceiling == 512 * MIB
    line, hello = hand.welcome()
    assert hello.ceiling == 512 * MIB
    line.report()
    assert elastic.orders.ceiling == 24 * MIB
    line.send(Budget(1, 300 * MIB))
    line.synced()
    assert elastic.orders.ceiling == 300 * MIB
    elastic.close()
    hand.close()
