"""benchmarks/convergence: how runs are joined and judged; the runs themselves need scikit-learn."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "convergence"


@pytest.fixture
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convergence_bench", HERE / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["convergence_bench"] = module
    spec.loader.exec_module(module)
    return module


def test_both_arms_of_every_seed_are_run_and_their_means_compared(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, bool]] = []

    def run(model: str, seed: int, epochs: int, storm: bool) -> dict[str, Any]:
        asked.append((seed, storm))
        return {"accuracy": [0.5, 0.9 + 0.01 * seed - 0.02 * storm], "orders": 7 if storm else 0}

    monkeypatch.setattr(bench, "run", run)
    found = bench.compare("cnn", 3, 2)
    assert sorted(asked) == [(s, storm) for s in range(3) for storm in (False, True)]
    assert [storm for _, storm in asked] == [True, False, False, True, True, False]  # they take turns at going first
    assert found["mean"] == {"undisturbed": 0.91, "storm": 0.89}
    assert found["apart"] == 0.02
    assert found["spread"]["storm"] == 0.01
    assert [one["seed"] for one in found["runs"]["storm"]] == [0, 1, 2]
    assert "cnn, seed 2, storm of 7 orders: 0.9000" in capsys.readouterr().out


class Deaf:
    """A job that lives on and whose control connection is gone."""

    def __init__(self, *_: object) -> None:
        self.process, self.killed = self, False
        jobs.append(self)

    def order(self, budget: int) -> None:
        pass

    def rest(self, seconds: float) -> None:
        raise BrokenPipeError("gone")

    def poll(self) -> None:
        return None

    def wait(self, timeout: float) -> None:
        raise subprocess.TimeoutExpired("job", timeout)

    def kill(self) -> None:
        self.killed = True


jobs: list[Deaf] = []


def test_a_job_that_lost_its_connection_and_goes_on_is_not_left_behind(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "Job", Deaf)
    with pytest.raises(subprocess.TimeoutExpired):
        bench.run("cnn", 0, 1, True)
    assert jobs[-1].killed
