"""Orders on a device that works behind Python: freed bytes come back only once what is queued is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from lull._protocol import Ack, Budget
from lull._torch.device import Pool
from lull._torch.orders import Orders
from lull._torch.owed import Discard
from lull._torch.slots import Table

pytestmark = pytest.mark.cpu

MIB = 1 << 20


class Queue:
    """A pool whose freed bytes are `coming` until the test says that the device is done."""

    name, capped, waits, unit = "a queue", True, False, MIB

    def __init__(self, live: int) -> None:
        self.live = live
        self.free = 0
        self.done = False
        self.woken = threading.Event()

    def resident(self) -> int:
        return self.live + self.free

    def in_use(self) -> int:
        return self.live

    def above(self, limit: int) -> bool:
        return self.live > limit

    def coming(self) -> int:
        return self.free

    def drop(self, size: int) -> None:
        self.live -= size
        self.free += size

    def trim(self, target: int) -> int:
        gone = min(self.free, max(0, self.resident() - target)) if self.done else 0
        self.free -= gone
        return gone

    def set_cap(self, cap: int) -> None: ...

    def policy(self, wait_us: int, overdraft: bool) -> None: ...

    def fail(self, on: bool) -> None: ...

    def waiters(self) -> int:
        return 0

    def wait_short(self, timeout_us: int) -> int:
        self.woken.wait(timeout_us / 1e6)
        self.woken.clear()
        return 0

    def wake(self) -> None:
        self.woken.set()


class Slots:
    """A table of ten runs of 10 MiB each."""

    def __init__(self, pool: Queue) -> None:
        self.pool = pool
        self.left = 10
        self.dropped = self.recomputed = self.largest = 0
        self.recompute_s = 0.0

    def empty_earliest(self, enough: Callable[[], bool]) -> bool:
        while not enough() and self.left:
            self.left -= 1
            self.dropped += 1
            self.pool.drop(10 * MIB)
        return enough()

    def droppable(self) -> bool:
        return self.left > 0


class Rig:
    def __init__(self) -> None:
        self.pool = Queue(100 * MIB)
        self.orders = Orders(cast(Pool, self.pool), "slots", 200 * MIB, time.monotonic)
        self.table = Slots(self.pool)
        self.acks: list[Ack] = []
        self.answered = threading.Event()

    def begin(self) -> None:
        self.orders.begin(cast(Table, self.table), 4)

    def order(self, bytes: int, **fields: Any) -> None:
        self.orders.apply(Budget(self.orders.epoch + 1, bytes, **fields), self.reply)

    def reply(self, ack: Ack) -> None:
        self.acks.append(ack)
        self.answered.set()

    def ack(self) -> Ack:
        assert self.answered.wait(30)
        return self.acks[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.orders.close()


def test_only_what_the_order_needs_is_emptied_though_nothing_came_back_yet(rig: Rig) -> None:
    rig.begin()
    rig.order(70 * MIB)
    assert (rig.table.dropped, rig.acks) == (3, []), "30 MiB are free and on their way"
    rig.pool.done = True
    assert (rig.ack().how, rig.ack().held) == ("drop", 70 * MIB)
    assert rig.table.dropped == 3


def test_the_training_thread_waits_for_the_device_and_loses_nothing(rig: Rig) -> None:
    rig.begin()
    rig.order(70 * MIB)
    done = threading.Timer(0.05, lambda: setattr(rig.pool, "done", True))
    done.start()
    for _ in range(50):
        rig.orders.safe_point()
    done.join()
    assert rig.ack().how in ("drop", "suspend")
    assert rig.table.dropped == 3
    assert not rig.orders.discarding


def test_a_deadline_that_the_device_misses_discards_nothing_since_that_would_not_be_sooner(rig: Rig) -> None:
    rig.begin()
    rig.order(70 * MIB, within_us=5_000)
    done = threading.Timer(0.05, lambda: setattr(rig.pool, "done", True))
    done.start()
    rig.orders.safe_point()
    done.join()
    assert rig.ack().how in ("drop", "suspend")
    assert not rig.orders.discarding


def test_a_deadline_with_nothing_on_its_way_discards(rig: Rig) -> None:
    rig.table.left = 0
    rig.begin()
    rig.order(70 * MIB, within_us=5_000)
    time.sleep(0.03)  # the deadline passes
    with pytest.raises(Discard):
        rig.orders.safe_point()
    rig.pool.drop(rig.pool.live)
    rig.pool.done = True
    rig.orders.discarded(4)
    assert (rig.ack().how, rig.ack().samples_discarded) == ("discard", 4)


def test_an_order_between_microbatches_is_answered_when_the_device_is_done(rig: Rig) -> None:
    rig.pool.drop(60 * MIB)
    rig.order(50 * MIB)
    assert rig.acks == []
    rig.pool.done = True
    rig.pool.wake()
    assert (rig.ack().how, rig.ack().held) == ("cached", 50 * MIB)


def test_an_order_that_nothing_more_can_meet_is_answered_at_once(rig: Rig) -> None:
    rig.order(50 * MIB)
    assert (rig.ack().how, rig.ack().held) == ("part", 100 * MIB)


def test_between_microbatches_an_order_waits_no_longer_than_its_time(rig: Rig) -> None:
    rig.pool.drop(60 * MIB)
    rig.order(50 * MIB, within_us=30_000)
    assert (rig.ack().how, rig.ack().held) == ("part", 100 * MIB)


def test_the_end_of_a_microbatch_keeps_its_name_in_the_ack(rig: Rig) -> None:
    rig.table.left = 0
    rig.begin()
    rig.order(30 * MIB)
    rig.pool.drop(100 * MIB)
    rig.orders.end()
    assert rig.acks == [], "the microbatch is over, and the device is not"
    rig.orders.end_batch()
    rig.pool.done = True
    rig.pool.wake()
    assert rig.ack().how == "finish"


def test_close_answers_what_is_owed_as_it_stands(rig: Rig) -> None:
    rig.pool.drop(60 * MIB)
    rig.order(50 * MIB)
    rig.orders.close()
    assert rig.ack().held == 100 * MIB


def test_an_order_leaves_room_for_the_next_operator_where_none_waits(rig: Rig) -> None:
    rig.begin()
    rig.table.largest = 10 * MIB
    rig.order(70 * MIB)
    rig.pool.done = True
    assert rig.ack().held == 70 * MIB
    assert rig.pool.live == 50 * MIB, "twice the largest tensor is free below the ceiling"


def test_a_block_that_begins_finds_room(rig: Rig) -> None:
    rig.begin()
    rig.table.largest = 10 * MIB
    rig.orders.ceiling = 105 * MIB
    rig.orders.make_room()
    assert rig.pool.live == 80 * MIB
    rig.orders.make_room()
    assert rig.pool.live == 80 * MIB


def test_pack_keeps_twice_the_largest_tensor_free_where_no_allocation_waits(rig: Rig) -> None:
    rig.begin()
    rig.table.largest = 0
    rig.orders.ceiling = 120 * MIB

    class Tensor:
        nbytes = 15 * MIB

    assert rig.orders.may_store(cast(Any, Tensor()))
    assert rig.pool.live == 90 * MIB
