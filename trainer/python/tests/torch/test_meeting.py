"""Ranks meet in a store: what each says reaches all, and one that is stuck or gone is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

import lull
from lull._torch.meeting import Meeting

pytestmark = pytest.mark.cpu


class Clock:
    """Seconds that pass when somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


@pytest.fixture
def seats() -> Any:
    """Makes the seat of one rank of two; all are left at the end."""
    store, made = dist.HashStore(), []

    def seat(rank: int, **options: Any) -> Meeting:
        made.append(Meeting(store, rank, 2, **{"stuck_s": 100.0, "beat_s": 3600.0, **options}))
        return made[-1]

    yield seat
    for meeting in made:
        meeting.close()


def test_words_of_each_rank_reach_all(seats: Any) -> None:
    first, second = seats(0), seats(1)
    said: list[list[str]] = []
    other = threading.Thread(target=lambda: said.append([*second.meet(1, "b"), *second.meet(2, "d")]))
    other.start()
    assert first.meet(1, "a") == ["a", "b"]
    assert first.meet(2, "c") == ["c", "d"]
    other.join()
    assert said == [["a", "b", "c", "d"]]


def test_rank_without_a_sign_of_life_is_named(seats: Any) -> None:
    seats(1)
    with pytest.raises(lull.RankError, match=r"elastic.backward rank 1: no sign of life for 1\d s, want all 2 ranks"):
        seats(0, silent_s=10.0, clock=Clock()).meet(1, "a")


def test_rank_that_lives_and_does_nothing_is_named_after_the_groups_timeout(seats: Any) -> None:
    second = seats(1, beat_s=0.002)
    with pytest.raises(lull.RankError, match=r"rank 1: did nothing for 10\d s, want all 2 ranks in batch 7: it does"):
        seats(0, silent_s=1e9, clock=Clock()).meet(7, "a")
    assert second.pausing() is False


def test_rank_that_pauses_on_purpose_gets_on(seats: Any) -> None:
    second = seats(1, beat_s=0.001)
    second.pausing = lambda: True
    first = seats(0, stuck_s=30.0, silent_s=1e9)
    late = threading.Timer(0.2, second.fail, (1, ValueError("a bad sample")))
    late.start()
    with pytest.raises(lull.RankError, match=r"rank 1: failed in batch 1 \(ValueError: a bad sample\), want all to"):
        first.meet(1, "a")


def test_rank_that_has_left_is_named_at_once(seats: Any) -> None:
    seats(1).close()
    with pytest.raises(lull.RankError, match="rank 1: has closed its handle or ended") as caught:
        seats(0).meet(1, "a")
    assert caught.value.ranks == (1,)


class Gone(dist.HashStore):
    """A store whose keeper ends."""

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("Connection reset by peer\nand a long trace")


def test_store_that_is_gone_is_told_in_words() -> None:
    meeting = Meeting(dist.HashStore(), 0, 2, stuck_s=1.0)
    meeting._store = Gone()
    with pytest.raises(
        lull.RankError, match=r"ranks: the store where they meet does not answer \(Connection reset by peer\), want the"
    ):
        meeting.meet(1, "a")
    meeting.close()
