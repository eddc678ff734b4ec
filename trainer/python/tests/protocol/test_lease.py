"""The lease and the backoff, on a clock made of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._lease import Lease, backoff

pytestmark = pytest.mark.cpu


def test_there_is_no_lease_before_a_sidecar() -> None:
    lease = Lease()
    assert not lease.ends(1e9)
    assert lease.cap(2.0, 1e9) == 2.0


def test_lease_ends_once_and_counts_from_the_last_line() -> None:
    lease = Lease()
    lease.start(10.0, now=100.0)
    lease.heard(105.0)
    at = [(109.0, False), (114.9, False), (115.0, True), (115.1, False), (1e9, False)]
    assert [(now, lease.ends(now)) for now, _ in at] == at


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20))
def test_each_silence_ends_the_lease_once(silences: list[int]) -> None:
    """A line after the end makes it run again, without another welcome."""
    lease, now, ended = Lease(), 0.0, 0
    lease.start(10.0, now)
    for silence in silences:
        ended += sum(lease.ends(now + silence * part) for part in (0.5, 0.9, 1.0))
        now += silence
        lease.heard(now)
        assert lease.cap(60.0, now) == pytest.approx(10.0)
    assert ended == sum(silence >= 10 for silence in silences)


def test_welcome_starts_a_new_lease() -> None:
    lease = Lease()
    lease.start(10.0, now=0.0)
    assert lease.ends(10.0)
    lease.start(10.0, now=20.0)
    assert not lease.ends(29.0)
    assert lease.ends(30.0)


def test_pause_does_not_sleep_through_the_end() -> None:
    lease = Lease()
    lease.start(10.0, now=0.0)
    assert lease.cap(60.0, 4.0) == 6.0
    assert lease.cap(1.0, 4.0) == 1.0
    assert lease.cap(60.0, 11.0) == 0.001
    assert lease.ends(11.0)
    assert lease.cap(60.0, 12.0) == 60.0


def test_backoff_doubles_to_its_limit() -> None:
    assert [backoff(0.05, 2.0, n, lambda: 1.0) for n in (0, 1, 2, 5, 6, 1000)] == [0.05, 0.1, 0.2, 1.6, 2.0, 2.0]


@given(st.integers(0, 2000), st.floats(0, 1))
def test_half_of_a_backoff_is_random(failures: int, random: float) -> None:
    longest = backoff(0.05, 2.0, failures, lambda: 1.0)
    assert longest / 2 <= backoff(0.05, 2.0, failures, lambda: random) <= longest
