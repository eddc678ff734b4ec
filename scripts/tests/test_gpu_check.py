"""gpu-check: its rehearsal runs every phase, its result is held to a schema, and without a GPU it says so."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "check.py"
sys.path.insert(0, str(SCRIPT.parent))
import check  # noqa: E402
import result  # noqa: E402

FIGURE = {"n": 5, "p50": 1.0, "p99": 2.0, "max": 2.5}


def run_of(phase: str, found: dict[str, Any], bar: bool = False) -> dict[str, Any]:
    return {"phase": phase, "env": {}, "bar": bar, "unit": "GiB", "result": found}


@pytest.fixture
def whole() -> dict[str, Any]:
    orders = {
        "pool": "the CUDA arena",
        "free_as_seen_by": "NVML",
        "order_ms": FIGURE,
        "how": {"drop": 5},
        "freed_less_than_asked": 0,
        "neighbour": {"takes": 5, "failures": []},
    }
    return {
        "schema": result.SCHEMA,
        "rehearsal": False,
        "device": "some GPU",
        "torch": "2.13.0",
        "seconds": 1.0,
        "runs": {
            "orders": run_of("orders", orders),
            "exact": run_of("exact", {"batches": 3, "differing": 0, "orders": 9, "recomputed": 4}),
            "overhead": run_of(
                "overhead", {"plain_s": FIGURE, "lull_s": FIGURE, "ratio": 1.01, "run_ahead": "2"}, bar=True
            ),
            "models": run_of("models", {"n": 9, "memory_mape": 0.02, "step_time_mape": 0.3}),
            "giveback": run_of("giveback", {"1": FIGURE, "5": FIGURE, "10": {**FIGURE, "n": 0}}),
        },
        "not_measured": {},
        "failed": [],
        "missed": [],
    }


def test_a_whole_result_is_readable_and_passes(whole: dict[str, Any]) -> None:
    assert result.problems(whole) == []
    assert result.judge(whole["runs"]) == ([], [])
    assert "| giveback | 10 GiB, ms | not measured |" in result.table(whole)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r.update(schema="x"), "schema: got 'x', want 'lull.gpu-check/1'"),
        (lambda r: r.pop("device"), "device: got None, want a str"),
        (lambda r: r["runs"]["exact"]["result"].pop("differing"), "runs.exact.differing: missing"),
        (
            lambda r: r["runs"]["orders"]["result"].update(order_ms={"n": 1}),
            "runs.orders.order_ms: got {'n': 1}, want n,",
        ),
    ],
)
def test_what_is_wrong_with_a_result_is_named(whole: dict[str, Any], change: Any, text: str) -> None:
    broken = copy.deepcopy(whole)
    change(broken)
    assert any(problem.startswith(text) for problem in result.problems(broken)), result.problems(broken)


def test_what_must_never_be_is_a_failure_and_a_bar_is_only_missed(whole: dict[str, Any]) -> None:
    runs = whole["runs"]
    runs["orders"]["result"]["neighbour"]["failures"] = ["CUDA out of memory"]
    runs["exact"]["result"]["differing"] = 1
    runs["overhead"]["result"]["ratio"] = 1.5
    runs["models"]["result"]["memory_mape"] = 0.05
    failed, missed = result.judge(runs)
    assert failed == [
        "orders: the neighbour could not take what was freed, 1 times: CUDA out of memory",
        "exact: 1 of 3 batches differ in bits",
    ]
    assert missed == [
        "overhead: 1.500 of plain accumulation, bar 1.02",
        "models: memory 5.0% off in the mean, bar 3%",
    ]


def test_the_plan_fits_the_time_with_what_matters_first() -> None:
    runs = check.plan(rehearse=False)
    assert [run.key for run in runs[:4]] == ["exact", "orders", "overhead", "models"]
    assert sum(run.limit_s for run in runs[:4]) < check.LONGEST_S < 600
    assert len({run.key for run in runs}) == len(runs)


def test_a_phase_that_fails_or_takes_too_long_is_not_measured_and_says_why(tmp_path: Path) -> None:
    wrong = check.Run("x", "giveback", 60, {"LULL_CHECK_MECHANISM": "arena", "CUDA_VISIBLE_DEVICES": ""})
    said = check.one(wrong, False, 120, tmp_path)
    assert isinstance(said, str)
    assert said.startswith("ended with 1: ")
    assert check.one(wrong, True, 0.01, tmp_path) == "not done within 0 s"


def _command(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *args], env=env, capture_output=True, text=True, timeout=580, check=False
    )


def test_without_a_gpu_nothing_is_measured_and_the_status_is_no_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = _command("--out", str(tmp_path / "check.json"))
    assert done.returncode == 3
    assert "finds no CUDA device, so nothing was measured; --rehearse tries the script on the CPU" in done.stderr
    assert not (tmp_path / "check.json").exists()


def test_the_rehearsal_runs_every_phase_and_calls_itself_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "check.json"
    keys = ["exact", "orders", "overhead", "models", "giveback arena 32MiB"]
    done = _command("--rehearse", "--out", str(out), "--only", *keys)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert result.problems(found) == []
    assert list(found["runs"]) == keys
    assert found["rehearsal"] is True
    assert done.stdout.startswith("REHEARSAL ON A CPU, says nothing about GPUs: ")
    assert found["runs"]["exact"]["result"]["orders"] > 0
    neighbour = found["runs"]["orders"]["result"]["neighbour"]
    assert neighbour["takes"] == found["runs"]["orders"]["result"]["order_ms"]["n"]
    assert neighbour["failures"] == []
    assert neighbour["kept_bytes"] > 0
    assert found["missed"] == []
