"""The model of what giving memory back costs: learned from what was seen, and the cheapest way that is in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._torch.costs import MIB, Costs, Spread, Way

pytestmark = pytest.mark.cpu


@given(st.floats(0, 0.1), st.floats(1e-6, 1e-3), st.lists(st.integers(1, 4096), min_size=8, max_size=40, unique=True))
def test_line_is_learned_from_orders_of_many_sizes(fixed: float, per_mib: float, sizes: list[int]) -> None:
    way = Way()
    for mib in sizes:
        way.observe(mib, fixed + per_mib * mib)
    for mib in sizes:
        assert way.seconds(mib) == pytest.approx(fixed + per_mib * mib, rel=1e-2, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 4096), st.floats(0, 1)), min_size=1, max_size=50))
def test_line_never_promises_less_than_nothing(seen: list[tuple[float, float]]) -> None:
    way = Way()
    for mib, seconds in seen:
        way.observe(mib, seconds)
        fixed, per_mib = way.line()
        assert fixed >= 0
        assert per_mib >= 0
        assert way.high(mib) >= way.seconds(mib)


def test_newer_orders_count_more() -> None:
    way = Way()
    for _ in range(50):
        way.observe(8, 0.1)
    for _ in range(50):
        way.observe(8, 0.001)
    assert way.seconds(8) < 0.012


def test_spread_widens_with_what_varies() -> None:
    steady, shaky = Spread(), Spread()
    for i in range(40):
        steady.observe(1.0)
        shaky.observe(0.5 + (i % 2))
    assert steady.high == pytest.approx(1.0, abs=0.01)
    assert shaky.high > 2.0


def trained(sample_s: float = 0.001, drop_s: float = 0.002) -> Costs:
    costs = Costs()
    for _ in range(40):
        costs.sample_s.observe(sample_s)
        costs.observe("drop", 8 * MIB, drop_s)
        costs.lost("drop", 0.005)
    return costs


def test_finish_is_chosen_where_the_microbatch_ends_in_time() -> None:
    plan = trained().choose(8 * MIB, 0.1, 32, 0.010)  # 22 ms are left
    assert plan.how == "finish"
    assert 0.022 < plan.wait_s <= 0.075
    assert plan.why == (
        "finish takes up to 22.0 ms and loses nothing; drop takes up to 2.0 ms and loses about 5.0 ms of work"
    )


def test_time_for_a_drop_is_kept_and_part_of_the_deadline() -> None:
    plan = trained().choose(8 * MIB, 0.030, 32, 0.010)
    assert (plan.how, plan.wait_s) == ("drop", 0.0)
    assert plan.why == "finish takes up to 22.0 ms, which a deadline of 30.0 ms with 2.0 ms kept for a drop has not"


def test_without_a_deadline_or_knowledge_memory_goes_back_at_once() -> None:
    assert trained().choose(8 * MIB, 0.0, 32, 0.01).why == "no deadline: at once"
    assert Costs().choose(8 * MIB, 9.0, 32, 0.0).why == "when the microbatch ends is not known"
    assert trained().choose(8 * MIB, 9.0, 32, 0.040).why == "when the microbatch ends is not known"


def test_suspended_microbatch_is_thrown_away_only_when_time_runs_out() -> None:
    costs = trained()
    assert not costs.must_discard(0.020, 0.010, 8 * MIB)
    assert costs.must_discard(0.020, 0.012, 8 * MIB), "4 ms are kept before a discard was ever seen"
    for _ in range(40):
        costs.observe("discard", 8 * MIB, 0.001)
    assert not costs.must_discard(0.020, 0.012, 8 * MIB)


def test_rows_carry_what_was_seen_and_nothing_else() -> None:
    costs = trained()
    costs.observe("superseded", 8 * MIB, 9.0)
    costs.observe("nothing", 0, 9.0)
    costs.lost("discard", 0.25)
    costs.high("suspend", MIB)
    (row,) = costs.rows()
    assert (row.how, row.us_per_mib, row.lost_sample_s) == ("drop", 0.0, 0.005)
    assert row.fixed_us == pytest.approx(2000, abs=1)
