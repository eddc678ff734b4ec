"""attach refuses what it cannot keep exact, puts back what it changes, and waits for a first grant."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import handmade
import pytest
import torch
import torch.nn as nn

import lull
from lull._agent import Agent
from lull._config import Config
from lull._protocol import Budget

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


def test_distributed_data_parallel_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), stub(nn.parallel.DistributedDataParallel))
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"attach model: 1 is a DistributedDataParallel, want a plain module: several workers.*nothing is att",
    ):
        attach(model)


def test_fully_sharded_models_of_both_kinds_are_refused() -> None:
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


def test_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lull.RuntimeRefusal, match="attach world: got 2 ranks, want 1: several workers"):
        attach(nn.Linear(2, 2), world=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(lull.RuntimeRefusal, match="attach world: got 4 ranks"):
        attach(nn.Linear(2, 2))


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
        self.started = threading.Event()

    def start(self) -> None:
        self.started.set()

    def close(self) -> None:
        self.connected = False

    def request_floor(self, bytes: int, timeout: float) -> bool:
        return True


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
