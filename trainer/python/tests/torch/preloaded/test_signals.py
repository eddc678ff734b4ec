"""A signal's exception ends training as it ends plain PyTorch: it is raised, not printed and forgotten."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Recorder, text_loss

pytestmark = pytest.mark.cpu


class Stop(BaseException):
    """What the handler raises."""


# Between open() and `with`, as in any Python program, the file is closed by its reference count: not an exception lost.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_no_signal_is_lost_at_any_moment_of_a_microbatch() -> None:
    torch.manual_seed(4)
    model = Gpt(width=64)
    rec = Recorder(model, torch.optim.AdamW(model.parameters()), budget=256 * MIB)
    ids, loss = torch.randint(0, 256, (16, 65)), text_loss(model)
    for _ in range(2):
        rec.elastic.backward(ids, loss)
    fired = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal fired
        fired += 1
        raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    try:
        raised = 0
        for n in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0005 * n)
                while not fired:
                    rec.elastic.backward(ids, loss)
            except Stop:
                raised += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert raised == n + 1, "the handler ran and its exception did not arrive"
            fired = 0
            rec.elastic.optimizer.zero_grad()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    rec.elastic.backward(ids, loss)
    assert rec.elastic.device.pool.resident() < 256 * MIB


def test_what_a_handler_raises_while_a_microbatch_is_discarded_arrives() -> None:
    """It is no error that discarding brings with it."""
    torch.manual_seed(4)
    model = Gpt(width=64)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=256 * MIB)
    ids = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(ids, text_loss(model))
    rec.elastic.optimizer.zero_grad()

    def loss_fn(part: torch.Tensor) -> torch.Tensor:
        rec.elastic.orders._want_discard()
        raise Stop

    with pytest.raises(Stop):
        rec.elastic.backward(ids, loss_fn)
    assert all(p.grad is None for p in model.parameters())
    rec.elastic.backward(ids, text_loss(model))


@pytest.mark.parametrize("place", ["no_grad", "pack hooks", "pool"])
def test_a_scope_that_a_handler_broke_open_is_closed_when_the_batch_ends(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler runs in the first line of a `with`, after its effect: nothing would take that back."""
    torch.manual_seed(4)
    model = Gpt(width=64)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=256 * MIB)
    ids = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(ids, text_loss(model))
    rec.elastic.optimizer.zero_grad()
    seen: list[bool] = []

    def break_in(*_: object) -> None:
        if place == "no_grad":
            torch.no_grad().__enter__()
        elif place == "pack hooks":
            hooks = rec.elastic.hooks
            assert hooks.table is not None
            hooks.outer(hooks.table).__enter__()
        else:
            rec.elastic.device.pool.enable(True)
        seen.append(True)
        raise Stop

    with monkeypatch.context() as patch:
        loss_fn: Any = break_in
        if place != "pack hooks":  # after the forward pass, whose own scope is closed by then
            patch.setattr(rec.elastic, "_look", break_in)
            loss_fn = text_loss(model)
        with pytest.raises(Stop):
            rec.elastic.backward(ids, loss_fn)
    assert seen
    assert torch.is_grad_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not rec.elastic.device.pool.enable(False), "what the user allocates is not the pool's"
    rec.elastic.backward(ids, text_loss(model))
    assert all(p.grad is not None for p in model.parameters())
