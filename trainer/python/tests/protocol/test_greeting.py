"""What people are told of a connection: who answered, what was granted, and why nothing is."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from handmade import RecordingRuntime, Sidecar

from lull._agent import Agent, HelloState
from lull._config import Config
from lull._floor import Answer
from lull._greeting import PATIENCE_S, Greeting, say_bytes
from lull._protocol import Budget, Error, Welcome

pytestmark = pytest.mark.cpu

Start = Callable[..., Agent]
MIB = 1 << 20

STATE = HelloState("cpu", 640 * MIB, True, 0, 0, memory="the native arena")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 * MIB, "64.0 MiB"), (5 << 29, "2.5 GiB")]
)
def test_sizes_are_printed_in_the_largest_unit(count: int, text: str) -> None:
    assert say_bytes(count) == text


def test_first_budget_is_told_with_sidecar_floor_and_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lull")
    greeting = Greeting("/run/lull.sock", "host0", STATE)
    greeting.welcomed(7, 10.0)
    assert greeting.waiting
    greeting.budget(2 << 30)
    greeting.look(1e9)
    assert caplog.messages == [
        "connected to /run/lull.sock (session 7) as host0: budget 2.0 GiB, floor 640.0 MiB, memory from "
        "the native arena"
    ]


def test_budget_that_comes_with_the_welcome_is_told_after_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lull")
    greeting = Greeting("s", "cpu", STATE)
    greeting.budget(512)
    assert caplog.messages == []
    greeting.welcomed(3, 0.0)
    greeting.look(1e9)
    assert [m.partition(",")[0] for m in caplog.messages] == ["connected to s (session 3) as cpu: budget 512 B"]


def test_budget_that_does_not_come_is_told_once_with_the_device(caplog: pytest.LogCaptureFixture) -> None:
    greeting = Greeting("/run/lull.sock", "gpu9", STATE)
    greeting.look(1e9)  # not welcomed yet
    greeting.welcomed(7, 10.0)
    greeting.look(10.0 + PATIENCE_S - 0.1)
    assert caplog.messages == []
    greeting.look(10.0 + PATIENCE_S)
    greeting.look(1e9)
    assert caplog.messages == [
        "connected to /run/lull.sock (session 7), but no budget came within 5 s: it may lend nothing to a device "
        "named 'gpu9' (LULL_DEVICE), want a name from its lull.yaml; training stays at the min budget"
    ]


def test_nothing_is_missed_while_the_floor_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    greeting = Greeting("s", "cpu", HelloState("cpu", 0, False, 0, 0))
    greeting.welcomed(1, 0.0)
    greeting.look(1e9)
    assert caplog.messages == []
    caplog.set_level(logging.INFO, "lull")
    greeting.budget(512)
    assert caplog.messages == ["connected to s (session 1) as cpu: budget 512 B, floor not known yet, memory from cpu"]


def test_each_connection_is_told_once(start: Start, sidecar: Sidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lull")
    start()
    for _ in range(2):
        line, _ = sidecar.welcome()
        line.send(Budget((7 << 32) + 1, 3 * MIB))
        line.send(Budget((7 << 32) + 1, 3 * MIB))
        line.synced()
        line.close()
    sidecar.welcome()
    told = [m for m in caplog.messages if m.startswith("connected")]
    assert len(told) == 2
    assert all("budget 3.0 MiB" in m for m in told)


def test_refused_device_is_told_in_the_sidecars_words_and_the_job_is_alone(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start(Config(job="t", device="gpu9", backoff_first_s=0.001, backoff_max_s=0.01, report_s=3600.0))
    line, hello = sidecar.welcome(lease_ms=1)
    assert hello.device == "gpu9"
    line.report()
    assert agent.connected
    line.send(Error("hello", "device", "got gpu9, want one of host0"))
    line.report()  # at once, so that the runtime can look
    assert agent.refused == "got gpu9, want one of host0"
    assert not agent.connected
    assert agent.request_floor(5, 0.0) is Answer.GRANTED, "nobody to ask"
    assert (
        "which refused the device 'gpu9' (LULL_DEVICE): got gpu9, want one of host0; training goes on alone with "
        "its own budget"
    ) in caplog.text
    line.close()
    line = sidecar.accept()  # no lease has ended meanwhile: it was never lent anything
    line.read()
    assert runtime.calls == []
    line.send(Welcome(1, 8, 60_000, 10_000))
    line.synced()
    assert agent.refused == ""
    assert agent.connected


def test_job_whose_memory_cannot_be_read_is_told_and_asks_for_nothing(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start()
    line, _ = sidecar.welcome()
    line.send(Error("hello", "pid", "the sidecar cannot read this process's memory"))
    line.synced()
    assert "the sidecar refused hello pid: the sidecar cannot read this process's memory" in caplog.text
    assert agent.connected, "it is not alone: it stays at its min budget"
    assert agent.request_floor(5, 0.0) is Answer.GRANTED, "nobody counts it"
    assert runtime.calls == []
