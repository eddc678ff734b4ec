"""Whoever attached and trains past Lull is told so, once."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import lull
from lull._arena import UNATTACHED
from lull._torch.unused import STEPS, Unused

pytestmark = pytest.mark.cpu

PACKAGE = Path(__file__).parents[2]
WARNING = (
    "attach: {} and elastic.backward was never called, so this job holds its activation memory as without Lull and "
    "can give nothing back; want elastic.backward(batch, loss_fn) in place of loss.backward()"
)


def attached() -> tuple[nn.Module, torch.optim.Optimizer, lull.Elastic]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, optimizer, lull.attach(model, optimizer, socket="")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "never called" in record.getMessage()]


def plain_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("steps", range(STEPS + 3))
def test_loop_that_keeps_loss_backward_is_told_once(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, elastic = attached()
    plain_steps(model, optimizer, steps)
    elastic.close()
    if steps >= STEPS:
        assert said(caplog) == [WARNING.format(f"optimizer.step ran {STEPS} times")]
    elif steps:
        assert said(caplog) == [WARNING.format(f"the job detaches after {steps} optimizer steps")]
    else:
        assert said(caplog) == []


def test_loop_that_calls_elastic_backward_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, elastic = attached()
    plain_steps(model, optimizer, STEPS - 1)
    elastic.backward(torch.randn(2, 4), lambda b: model(b).mean())
    plain_steps(model, optimizer, 2 * STEPS)  # two ways of training may take turns
    elastic.close()
    assert said(caplog) == []


def test_end_of_the_process_is_told_and_not_that_of_a_forked_child(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unused = Unused()
    unused._at_exit()
    assert said(caplog) == [], "a job that trains nothing holds nothing"
    unused.stepped()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        unused._at_exit()
    assert said(caplog) == []
    unused._at_exit()
    unused.close()
    assert said(caplog) == [WARNING.format("the process ends after 1 optimizer steps")]


@pytest.mark.parametrize("partition", ["checked", "no such"])
def test_attach_takes_back_what_lull_run_would_say(partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it refuses: it was called."""
    monkeypatch.setenv(UNATTACHED, "1 x")
    model = nn.Linear(4, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lull.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), socket="", partition=partition).close()
    except lull.RuntimeRefusal:
        assert partition == "no such"
    assert UNATTACHED not in os.environ


SCRIPT = """
import torch, lull
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
elastic = lull.attach(model, optimizer, budget="64MiB")
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""


@pytest.mark.integration
def test_job_that_trains_past_lull_is_told_at_its_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "lull.run", str(script)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "LULL_SOCKET": str(tmp_path / "no.sock")},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    told = [line for line in done.stderr.splitlines() if "never called" in line]
    assert told == ["lull: " + WARNING.format("the process ends after 1 optimizer steps")]
