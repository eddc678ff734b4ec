"""A signal's exception ends training as it ends plain PyTorch: it is raised, not printed and forgotten."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Recorder, text_loss

pytestmark = pytest.mark.cpu


class Stop(BaseException):
    """What the handler raises."""


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
