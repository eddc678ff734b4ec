"""A floor that rises is asked for, again and again while it is not granted, and meanwhile comes off the ceiling."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._floor import Answer
from lull._torch.allowance import Allowance
from lull._torch.dry import NOISE, Floor
from lull._torch.rise import AGAIN_S, GONE_S, LEAST_S, PATIENCE_S, FloorWatch

pytestmark = pytest.mark.cpu

MIB = 1 << 20
FLOOR = Floor(bytes=100 * MIB, state=10 * MIB, step_peak=20 * MIB)
CORE_PATIENCE_S = 1.0
"""floorPatience of handover/floor.go."""


class World:
    """What a watch sees, and what it asked."""

    def __init__(self, outside: int, answer: Answer) -> None:
        self.outside, self.answer = outside, answer
        self.now, self.epoch = 100.0, 1
        self.asked: list[int] = []
        self.takes = 0.0
        self.watch = FloorWatch(lambda: self.outside, self._ask, epoch=lambda: self.epoch, clock=lambda: self.now)

    def _ask(self, bytes: int, timeout: float) -> Answer:
        assert timeout > CORE_PATIENCE_S, "the sidecar may still say yes"
        self.asked.append(bytes)
        self.now += self.takes
        return self.answer

    def excess(self, floor: Floor = FLOOR) -> int:
        return max(0, self.watch.uncovered - floor.bytes)


def test_floor_that_holds_is_not_asked_about() -> None:
    w = World(76 * MIB, Answer.GRANTED)
    assert w.watch.check(FLOOR) is FLOOR
    assert w.asked == []


def test_rise_is_asked_for_with_room_for_a_step() -> None:
    w = World(90 * MIB, Answer.GRANTED)
    risen = w.watch.check(FLOOR)
    assert w.asked == [90 * MIB + FLOOR.step_peak + NOISE]
    assert risen.bytes == w.asked[0]
    assert (risen.state, risen.step_peak) == (FLOOR.state, FLOOR.step_peak)
    assert w.watch.check(risen) is risen
    assert w.excess() == 0


@pytest.mark.parametrize("answer", [Answer.REFUSED, Answer.LATE, Answer.GONE])
def test_floor_that_is_not_granted_is_asked_for_again_until_it_is(answer: Answer) -> None:
    w = World(90 * MIB, answer)
    for _ in range(3):
        assert w.watch.check(FLOOR) is FLOOR
    assert len(w.asked) == 1
    assert w.excess() == 10 * MIB
    w.now += AGAIN_S
    w.watch.check(FLOOR)
    assert len(w.asked) == 2, "after a while"
    w.epoch += 1
    w.watch.check(FLOOR)
    assert len(w.asked) == 2, "budgets may come often"
    w.now += LEAST_S
    w.watch.check(FLOOR)
    assert len(w.asked) == 3, "after a new budget"
    w.now, w.answer = w.now + AGAIN_S, Answer.GRANTED
    risen = w.watch.check(FLOOR)
    assert risen.bytes == w.asked[-1] == 90 * MIB + FLOOR.step_peak + NOISE
    assert w.excess() == 0
    w.outside += 30 * MIB
    w.watch.check(risen)
    assert len(w.asked) == 5, "another rise is another question, at once"


def test_excess_follows_what_is_held_and_ends_with_it() -> None:
    w = World(90 * MIB, Answer.REFUSED)
    w.watch.check(FLOOR)
    w.outside = 95 * MIB
    w.watch.check(FLOOR)
    assert (w.excess(), len(w.asked)) == (15 * MIB, 1)
    w.outside = 70 * MIB
    assert w.watch.check(FLOOR) is FLOOR
    assert w.excess() == 0


def test_floor_that_rose_meanwhile_is_enough() -> None:
    w = World(90 * MIB, Answer.LATE)
    w.watch.check(FLOOR)
    late = Floor(w.asked[0], FLOOR.state, FLOOR.step_peak)
    assert w.watch.check(late) is late
    assert (w.excess(late), len(w.asked)) == (0, 1)
    w.outside += 30 * MIB
    w.watch.check(late)
    assert len(w.asked) == 2, "another rise is another question, at once"


def test_need_that_swings_around_the_floor_is_asked_about_as_rarely_as_one_that_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = World(90 * MIB, Answer.REFUSED)
    with caplog.at_level(logging.INFO, logger="lull"):
        for swing in range(200):
            w.outside = (90 if swing % 2 == 0 else 70) * MIB
            w.watch.check(FLOOR)
            assert w.excess() == (10 * MIB if swing % 2 == 0 else 0)
            w.now += 0.5
    assert len(w.asked) == pytest.approx(100 / AGAIN_S, abs=1)
    assert len(caplog.records) == 2, "the want, and that it was over: once"


@pytest.mark.parametrize("takes", [0.0, 0.1, 1.0, 1.5])
def test_questions_that_budgets_bring_cost_training_a_tenth_at_most(takes: float) -> None:
    w = World(90 * MIB, Answer.REFUSED)
    w.takes = takes
    began = w.now
    while w.now < began + 1000:
        w.epoch += 1
        w.watch.check(FLOOR)
        w.now += 0.25
    assert 10 < len(w.asked) <= 1001
    assert len(w.asked) * takes <= 100 + takes


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer.REFUSED, "the sidecar has no room for a floor of 114.0 MiB"),
        (Answer.LATE, f"the sidecar did not answer within {PATIENCE_S} s when asked for a floor of 114.0 MiB"),
        (Answer.GONE, "the sidecar is gone, and nobody can grant a floor of 114.0 MiB"),
    ],
)
def test_each_reason_is_said_as_what_it_is_and_once(answer: Answer, why: str, caplog: pytest.LogCaptureFixture) -> None:
    w = World(90 * MIB, answer)
    with caplog.at_level(logging.INFO, logger="lull"):
        for _ in range(3):
            w.watch.check(FLOOR)
            w.now += AGAIN_S
        assert [record.getMessage() for record in caplog.records] == [
            f"floor: 90.0 MiB are held outside the pool, want at most 80.0 MiB, and {why}; the excess comes off the "
            "ceiling of activation memory, and it is asked for again in 10 s or at the next budget"
        ]
        w.outside = 110 * MIB
        w.watch.check(FLOOR)
        assert len(caplog.records) == 2, "another amount"
        w.now += AGAIN_S
        w.answer = Answer.LATE if answer is not Answer.LATE else Answer.GONE
        w.watch.check(FLOOR)
        assert len(caplog.records) == 3, "another reason"
        w.now, w.answer = w.now + AGAIN_S, Answer.GRANTED
        w.watch.check(FLOOR)
    assert caplog.records[-1].getMessage() == ("floor: 134.0 MiB are enough again for what is held outside the pool")


def test_parameters_that_are_trained_from_now_on_wait_for_their_floor(caplog: pytest.LogCaptureFixture) -> None:
    answers = [Answer.REFUSED, Answer.REFUSED, Answer.GONE, Answer.GRANTED]
    asked: list[int] = []

    def ask(bytes: int, timeout: float) -> Answer:
        asked.append(bytes)
        return answers.pop(0)

    pauses: list[int] = []

    def pause() -> bool:
        pauses.append(1)
        return True

    with caplog.at_level(logging.WARNING, logger="lull"):
        risen = FloorWatch(lambda: 0, ask).claim(FLOOR, 30 * MIB, pause)
    assert asked == [130 * MIB] * 4
    assert len(pauses) == 3
    assert risen.bytes == 130 * MIB
    assert (risen.state, risen.step_peak) == (FLOOR.state, FLOOR.step_peak)
    said = "floor: 30.0 MiB more are needed for parameters that are trained from now on, and {}; training waits for it"
    assert [record.getMessage() for record in caplog.records] == [
        said.format("the sidecar has no room for a floor of 130.0 MiB"),
        said.format("the sidecar is gone, and nobody can grant a floor of 130.0 MiB"),
    ]


def test_training_waits_for_no_grant_once_the_sidecar_is_gone_for_longer_than_a_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    answers = [Answer.REFUSED, Answer.GONE, Answer.REFUSED]

    def pause() -> bool:
        now[0] += 1.5
        return True

    def ask(bytes: int, timeout: float) -> Answer:
        return answers.pop(0) if answers else Answer.GONE

    watch = FloorWatch(lambda: 0, ask, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, logger="lull"):
        risen = watch.claim(FLOOR, 30 * MIB, pause)
    assert risen.bytes == 130 * MIB
    assert 100 + 3 * 1.5 + GONE_S <= now[0] < 100 + 3 * 1.5 + GONE_S + 2
    assert caplog.records[-1].getMessage() == (
        "floor: no sidecar for 15 s, so nobody counts 130.0 MiB; training goes on with them"
    )


def test_what_is_not_covered_is_known_before_it_is_asked_for() -> None:
    known: list[int] = []
    watch: FloorWatch

    def ask(bytes: int, timeout: float) -> Answer:
        assert known == [90 * MIB + FLOOR.step_peak], "an ack during the question promises no less"
        return Answer.REFUSED

    watch = FloorWatch(lambda: 90 * MIB, ask, found=lambda: known.append(watch.uncovered))
    watch.check(FLOOR)
    watch.check(FLOOR)
    assert len(known) == 1


def test_job_that_is_closed_stops_waiting_for_its_floor() -> None:
    claimed = FloorWatch(lambda: 0, lambda bytes, timeout: Answer.REFUSED).claim(FLOOR, MIB, lambda: False)
    assert claimed.bytes == 101 * MIB


sizes = st.integers(0, 1 << 40)


@given(sizes, sizes, sizes)
def test_allowance_is_within_the_budget_and_leaves_the_smallest_microbatch(b: int, excess: int, least: int) -> None:
    left = Allowance(excess, least).of(b)
    assert min(b, least) <= left <= b
    assert left + excess <= b or left == min(b, least), "all of the excess comes off, but for that"


@given(sizes, sizes, sizes)
def test_what_an_allowance_says_is_held_is_the_most_that_may_be(b: int, excess: int, least: int) -> None:
    allowance = Allowance(excess, least)
    assert allowance.held(b) == allowance.of(b) + excess >= b
    assert allowance.held(b) == b or allowance.of(b) == min(b, least), "above the budget only by the least"
