"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from handmade import FakeClock, RecordingRuntime, Sidecar

from lull._agent import Agent
from lull._config import Config


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    sidecar = Sidecar()
    yield sidecar
    sidecar.close()


@pytest.fixture
def start(runtime: RecordingRuntime, sidecar: Sidecar) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def make(config: Config | None = None, **hooks: object) -> Agent:
        config = config or Config(job="t", report_s=3600.0, backoff_first_s=0.001, backoff_max_s=0.01)
        agent = Agent(config, runtime, open_transport=sidecar.open, **hooks)  # type: ignore[arg-type]
        agents.append(agent)
        agent.start()
        return agent

    yield make
    for agent in agents:
        agent.close()
