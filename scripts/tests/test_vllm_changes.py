"""benchmarks/vllm: what is said of servers that took turns."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks/vllm")]

import changes  # noqa: E402


def run(tokens_per_s: float, cpu_s: float = 1.0, page_faults: int = 0) -> changes.Run:
    return changes.Run(tokens_per_s, cpu_s, page_faults)


def test_change_is_from_the_second_of_a_pair_to_the_first() -> None:
    seen = changes.changes([[(run(90, 2.2, 7), run(100, 2.0, 3))]])
    assert seen["change"]["median"] == pytest.approx(-0.1)
    assert seen["cpu_per_token_change"]["median"] == pytest.approx(0.1)
    assert seen["page_faults"] == [[7], [3]]
    assert seen["runs"] == [[asdict(run(90, 2.2, 7)), asdict(run(100, 2.0, 3))]]


def test_every_round_has_its_own_median_and_all_count_in_the_whole() -> None:
    rounds = [[(run(100 + d), run(100)) for d in (1, 2, 3)], [(run(100 + d), run(100)) for d in (-9, -8, -7)]]
    seen = changes.changes(rounds)
    assert seen["pairs"] == 6
    assert seen["round_medians"] == [0.02, -0.08]
    assert seen["change"]["min"] == -0.09
    assert seen["change"]["max"] == 0.03


def test_interval_covers_the_true_change_as_often_as_it_says() -> None:
    draw = random.Random(5)
    true, covered = -0.01, 0
    for _ in range(100):
        rounds = [[draw.gauss(true, 0.08) for _ in range(20)] for _ in range(3)]
        seen = changes.spread(rounds)
        covered += seen["low"] <= true <= seen["high"]
    assert 90 <= covered <= 100


def test_every_server_runs_as_often_first_and_in_every_order_as_any_other() -> None:
    orders = [tuple(changes.turn("abc", n)) for n in range(60)]
    assert {sum(order[place] == who for order in orders) for place in range(3) for who in "abc"} == {20}
    assert all(orders.count(order) == orders.count(order[::-1]) for order in set(orders))
    assert changes.turn("ab", 0) != changes.turn("ab", 1)
