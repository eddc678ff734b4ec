"""What the job holds outside the pool, above its floor, comes off the pool until the floor is granted."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import pytest
import torch

from lull._floor import Answer
from lull._protocol import Ack, Budget

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, attach, text_loss

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def nothing_falls() -> None:
    """What other tests of this process left behind goes before a floor is measured, not while a rise is looked for:
    bytes outside the pool are the whole process's, and what falls there makes room for what rises."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


HELD = 64 * MIB
GRANTED = 256 * MIB


class Agent:
    """A sidecar that has no room, or is slow to say so."""

    refused = ""
    connected = True

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def request_floor(self, bytes: int, timeout: float) -> Answer:
        self.asked.append(bytes)
        return self.answer

    def close(self) -> None: ...


@pytest.mark.parametrize("answer", [Answer.REFUSED, Answer.LATE, Answer.GONE])
def test_what_is_not_granted_comes_off_the_pool_and_a_late_grant_gives_it_back(answer: Answer) -> None:
    torch.manual_seed(3)
    model = Gpt()
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=GRANTED)
    ids, acks = torch.randint(0, 256, (8, 65)), list[Ack]()
    elastic.backward(ids, text_loss(model))
    agent = elastic.agent = Agent(answer)
    elastic.apply(Budget(1, GRANTED), acks.append)
    kept = bytearray(b"x" * HELD)  # what a user's loop keeps
    elastic.backward(ids, text_loss(model))
    assert len(agent.asked) == 1
    assert elastic.floor is not None
    excess = elastic.orders.allowance.excess
    assert HELD // 2 < excess < HELD * 2
    assert elastic.orders.ceiling == GRANTED - excess
    state = elastic.hello()
    assert (state.ceiling, state.floor) == (GRANTED, elastic.floor.bytes)
    assert acks[-1].held == GRANTED
    assert state.held == elastic.device.pool.resident() + excess

    elastic.apply(Budget(2, HELD + 32 * MIB), acks.append)
    assert elastic.orders.ceiling == HELD + 32 * MIB - excess, "a budget is for all that the device shows"
    elastic.apply(Budget(3, 1 * MIB), acks.append)
    assert elastic.orders.ceiling == 1 * MIB, "the excess takes nothing of what the smallest microbatch needs"
    assert (acks[-1].how, acks[-1].held) == ("part", 1 * MIB + excess)
    least = elastic.least
    elastic.apply(Budget(4, least), acks.append)
    assert elastic.orders.ceiling == least
    assert (acks[-1].how, acks[-1].held) == ("part", least + excess), "a promise of what may be held, not of what is"
    assert elastic.hello().ceiling == least + excess

    lower = GRANTED - 32 * MIB
    elastic.apply(Budget(5, lower, 0, "arrival", agent.asked[0]), acks.append)
    assert elastic.floor.bytes == agent.asked[0], "training has long gone on"
    assert (elastic.orders.allowance.excess, elastic.orders.ceiling) == (0, lower), "each order repeats the floor"
    assert (acks[-1].how, acks[-1].held) == ("nothing", lower)
    elastic.apply(Budget(6, GRANTED, 0, "floor", 1), acks.append)
    assert elastic.floor.bytes == agent.asked[0], "an answer to an earlier, smaller question"
    elastic.backward(ids, text_loss(model))
    assert len(agent.asked) == 1
    del kept


def test_a_rise_in_the_middle_of_a_batch_is_in_the_acks_before_its_end() -> None:
    torch.manual_seed(3)
    model = Gpt()
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=GRANTED)
    ids, acks, kept = torch.randint(0, 256, (8, 65)), list[Ack](), list[bytearray]()
    elastic.backward(ids, text_loss(model))
    agent = elastic.agent = Agent(Answer.REFUSED)
    elastic.apply(Budget(1, GRANTED), acks.append)
    elastic._next_size = lambda left: 1  # type: ignore[method-assign]
    clock = iter(range(1, 100_000))
    elastic._clock, elastic._looked = (lambda: next(clock)), 0.0  # each look a second after the last
    held: list[int] = []

    def loss_fn(part: torch.Tensor) -> torch.Tensor:
        if elastic.stats.samples == 8 + 3 and not kept:
            kept.append(bytearray(b"x" * HELD))
        elif kept:
            elastic.apply(Budget(2 + len(held), GRANTED - MIB), acks.append)
            held.append(elastic.orders.allowance.excess)
        return text_loss(model)(part)

    elastic.backward(ids, loss_fn)
    assert len(held) == 4
    assert all(HELD // 2 < excess < HELD * 2 for excess in held), "from the next microbatch on"
    assert agent.asked, "and it was asked for"


def test_an_interrupt_while_the_floor_is_asked_for_leaves_no_gradient() -> None:
    """Ctrl-C in the wait for the sidecar's answer, after the last microbatch: the batch counts as failed."""
    torch.manual_seed(3)
    model = Gpt()
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=GRANTED)
    ids = torch.randint(0, 256, (8, 65))
    elastic.backward(ids, text_loss(model))
    elastic.optimizer.zero_grad()

    class Interrupted(Agent):
        def request_floor(self, bytes: int, timeout: float) -> Answer:
            raise KeyboardInterrupt

    elastic.agent = Interrupted(Answer.LATE)
    kept = bytearray(b"x" * HELD)
    with pytest.raises(KeyboardInterrupt):
        elastic.backward(ids, text_loss(model))
    assert all(p.grad is None for p in model.parameters())
    elastic.agent = Agent(Answer.GRANTED)
    elastic.backward(ids, text_loss(model))
    assert all(p.grad is not None for p in model.parameters())
    del kept
