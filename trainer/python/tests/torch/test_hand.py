"""A batch that ranks share: each sample once, whoever takes, gives back or stops; and ranks finish together."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._torch.hand import Hand, Part, SharedHand, Table, cut

pytestmark = pytest.mark.cpu


class Store:
    """Compare and set, as the store of a process group has it; before each, others may come first."""

    def __init__(self) -> None:
        self.text = ""
        self.before: Callable[[], None] = lambda: None

    def swap(self, expected: str, desired: str) -> str:
        self.before()
        if self.text == expected:
            self.text = desired
        return self.text


def hands(store: Store, parts: list[Part]) -> list[SharedHand]:
    return [
        SharedHand(store.swap, part, rank=rank, able=lambda: True, idle=lambda seconds: False)
        for rank, part in enumerate(parts)
    ]


def test_a_batch_of_ones_own_is_cut_in_order() -> None:
    hand = Hand(10)
    assert hand.next(lambda left: min(left, 4)) == (0, 4)
    assert hand.next(lambda left: min(left, 3)) == (0, 3), "undone: cut again"
    hand.done(3)
    assert hand.next(lambda left: left) == (3, 10)
    hand.done(7)
    assert hand.next(lambda left: left) is None


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
def test_each_sample_is_computed_once_in_any_order_of_events(size: int, world: int, fewest: int, seed: int) -> None:
    store, draw = Store(), random.Random(seed)
    ranks = hands(store, [Part(size, 1 / world, fewest)] * world)
    seen: list[int] = []
    running: dict[int, tuple[int, int]] = {}
    over: set[int] = set()

    def fit(left: int) -> int:
        some = max(min(draw.randint(1, 8), left), min(fewest, left))
        return left if 0 < left - some < fewest else some

    while len(seen) < size:
        rank = draw.randrange(world)
        hand = ranks[rank]
        if rank in running and draw.random() < 0.2:  # its memory is gone
            del running[rank]
            hand.give_back()
        elif rank in running:
            start, stop = running.pop(rank)
            assert stop - start >= min(fewest, size)
            seen += range(start, stop)
            hand.done(stop - start)
        elif (piece := hand.next(fit)) is not None:
            running[rank] = piece
        else:
            over.add(rank)  # nothing left for now: idle said to stop
    for rank, hand in enumerate(ranks):
        assert rank not in running
        assert hand.next(fit) is None
    assert sorted(seen) == list(range(size))
    assert sum(hand.finished for hand in ranks) == size


def test_a_rank_that_comes_second_takes_what_is_left_then() -> None:
    """Both would write the same but for who writes: the second must not take the first one's for its own."""
    store = Store()
    first, second = hands(store, [Part(8, 0.5)] * 2)
    came: list[tuple[int, int] | None] = []

    def comes_first() -> None:
        store.before = lambda: None
        came.append(first.next(lambda left: left))

    store.before = comes_first
    assert second.next(lambda left: left) == (4, 8)
    assert came == [(0, 4)]


def test_a_rank_takes_its_share_at_once_and_smaller_pieces_of_the_tail() -> None:
    part = Part(100, 0.25)
    assert part.wants(0, 100) == 20, "a fifth is kept for the end"
    assert part.wants(8, 90) == 12
    assert part.wants(20, 40) == 10
    assert part.wants(30, 4) == 1
    assert Part(100, 0.25, fewest=2).wants(30, 4) == 2


def test_pieces_are_worth_their_fixed_time() -> None:
    part = Part(100, 0.25, fixed=6.0)
    assert part.wants(0, 100) == 25, "no tail, which would be less than what one more microbatch costs"
    assert part.wants(25, 40) == 10
    assert part.wants(35, 4) == 6


def test_too_few_are_never_left_of_a_stretch() -> None:
    assert cut(2, 3, 2) == 3, "one alone would be left"
    assert cut(2, 4, 2) == 2
    assert cut(9, 4, 2) == 4


def simulate(speeds: tuple[float, ...], guess: list[float], fixed_s: float, most: int) -> list[float]:
    """When each rank has nothing left to do: a microbatch takes `fixed_s` and a sample 1 / speed."""
    store = Store()
    parts = [Part(256, g / sum(guess), fixed=fixed_s * s) for g, s in zip(guess, speeds, strict=True)]
    ranks = hands(store, parts)
    free = dict.fromkeys(range(len(speeds)), 0.0)
    ends = [0.0] * len(speeds)
    while free:
        rank = min(free, key=free.__getitem__)
        piece = ranks[rank].next(lambda left: min(left, most))
        if piece is None:
            ends[rank] = free.pop(rank)
            continue
        ranks[rank].done(piece[1] - piece[0])
        free[rank] += fixed_s + (piece[1] - piece[0]) / speeds[rank]
    return ends


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 8.0), (1.0, 3.0, 5.0)])
def test_ranks_finish_within_two_smallest_microbatches_of_each_other(speeds: tuple[float, ...], seed: int) -> None:
    """Where a microbatch has no fixed time, and speeds are known within 15 %."""
    draw = random.Random(seed)
    ends = simulate(speeds, [speed * draw.uniform(0.85, 1.15) for speed in speeds], 0.0, 64)
    assert max(ends) - min(ends) <= 2.0 / min(speeds)


def test_a_large_fixed_time_is_paid_once() -> None:
    assert simulate((1.0, 1.0), [1.0, 1.0], 200.0, 256) == [328.0, 328.0], "two halves, as fast as can be"


def test_what_the_store_holds_is_read_as_it_was_written() -> None:
    table = Table(((3, 5), (9, 12)), 7)
    assert Table.read(table.text("0.1")) == table
    assert table.left == 5
    assert Table(()).text("new") == "new 0"
