"""A floor that rises is asked for; a refusal is said once and costs nothing else."""

from __future__ import annotations

import logging

import pytest

from lull._torch.dry import NOISE, Floor
from lull._torch.rise import FloorWatch

pytestmark = pytest.mark.cpu

MIB = 1 << 20
FLOOR = Floor(bytes=100 * MIB, state=10 * MIB, step_peak=20 * MIB)


def watch(outside: list[int], answer: bool) -> tuple[FloorWatch, list[int]]:
    asked: list[int] = []

    def ask(bytes: int, timeout: float) -> bool:
        asked.append(bytes)
        return answer

    return FloorWatch(lambda: outside[0], ask), asked


def test_floor_that_holds_is_not_asked_about() -> None:
    w, asked = watch([76 * MIB], True)
    assert w.check(FLOOR) is FLOOR
    assert asked == []


def test_rise_is_asked_for_with_room_for_a_step() -> None:
    w, asked = watch([90 * MIB], True)
    risen = w.check(FLOOR)
    assert asked == [90 * MIB + FLOOR.step_peak + NOISE]
    assert risen.bytes == asked[0]
    assert (risen.state, risen.step_peak) == (FLOOR.state, FLOOR.step_peak)
    assert w.check(risen) is risen


def test_refusal_keeps_the_floor_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    outside = [90 * MIB]
    w, asked = watch(outside, False)
    with caplog.at_level(logging.WARNING, logger="lull"):
        assert w.check(FLOOR) is FLOOR
        assert w.check(FLOOR) is FLOOR
        outside[0] = 110 * MIB
        assert w.check(FLOOR) is FLOOR
    assert len(asked) == 2
    assert len(caplog.records) == 2
    assert "the sidecar has no room for a floor of" in caplog.text
    assert "counts as activation memory" in caplog.text


def test_parameters_that_are_trained_from_now_on_wait_for_their_floor(caplog: pytest.LogCaptureFixture) -> None:
    answers = [False, False, True]
    asked: list[int] = []

    def ask(bytes: int, timeout: float) -> bool:
        asked.append(bytes)
        return answers.pop(0)

    pauses: list[int] = []

    def pause() -> bool:
        pauses.append(1)
        return True

    with caplog.at_level(logging.WARNING, logger="lull"):
        risen = FloorWatch(lambda: 0, ask).claim(FLOOR, 30 * MIB, pause)
    assert asked == [130 * MIB] * 3
    assert len(pauses) == 2
    assert risen.bytes == 130 * MIB
    assert (risen.state, risen.step_peak) == (FLOOR.state, FLOOR.step_peak)
    assert [record.getMessage() for record in caplog.records] == [
        f"floor: {30 * MIB} bytes more are needed for parameters that are trained from now on; the sidecar has no "
        f"room for a floor of {130 * MIB} yet, and training waits for it"
    ]


def test_job_that_is_closed_stops_waiting_for_its_floor() -> None:
    assert FloorWatch(lambda: 0, lambda bytes, timeout: False).claim(FLOOR, MIB, lambda: False).bytes == 101 * MIB
