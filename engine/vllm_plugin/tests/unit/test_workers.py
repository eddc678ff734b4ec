"""The worker channel and the puncher, over real sockets and real memory."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import queue
from pathlib import Path

import pytest

from lull_vllm import _wire
from lull_vllm._advice import Advice
from lull_vllm._channel import Channel
from lull_vllm._errors import LayoutError, LullVLLMError
from lull_vllm._puncher import Pages, Puncher
from lull_vllm._ranges import Run, TensorLayout, layout_of

pytestmark = pytest.mark.cpu

PAGE = mmap.PAGESIZE


class Rank:
    """A worker's memory and its puncher."""

    def __init__(self, path: Path, rank: int, blocks: int = 16, problem: str = "") -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.memory = mmap.mmap(-1, blocks * PAGE, flags=flags)
        self.memory[:] = b"\1" * (blocks * PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        layout = layout_of([TensorLayout(address, blocks, PAGE, PAGE)], blocks, PAGE)
        pages = Pages(layout, Advice())
        pages.prepare()
        hello = _wire.Hello(rank, os.getpid(), os.getppid(), blocks, PAGE, 1000, problem)
        self.puncher = Puncher(path, hello, None if problem else pages)
        self.puncher.start()


def test_order_is_done_when_every_rank_has_given_its_pages_back(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    answers: queue.Queue[tuple[int, bool, int]] = queue.Queue()
    ranks = [Rank(path, 0), Rank(path, 1)]
    channel = Channel(path, 2, lambda *answer: answers.put(answer))
    channel.accept_all(10)
    assert [h.rank for h in channel.hellos] == [0, 1] and channel.alive == 2
    channel.send(7, [Run(2, 3), Run(9, 1)])
    assert answers.get(timeout=60) == (7, True, 4 * PAGE)
    for rank in ranks:
        for block in range(16):
            want = 0 if block in (2, 3, 4, 9) else 1
            assert rank.memory[block * PAGE] == want and rank.memory[(block + 1) * PAGE - 1] == want
    end(channel, ranks)


def test_rank_with_a_problem_makes_the_order_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "workers"
    answers: queue.Queue[tuple[int, bool, int]] = queue.Queue()
    ranks = [Rank(path, 0), Rank(path, 1, problem="odd tensors")]
    channel = Channel(path, 2, lambda *answer: answers.put(answer))
    channel.accept_all(10)
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        channel.send(8, [Run(0, 1)])
        assert answers.get(timeout=60)[:2] == (8, False)
        channel.send(9, [Run(99, 1)])
        assert answers.get(timeout=60) == (9, False, 0)
    assert "lull: rank 1, order 8: odd tensors; its blocks count as held" in caplog.messages
    assert any("run of 1 blocks from 99: the pool has 16" in m for m in caplog.messages)
    end(channel, ranks)


def test_rank_that_dies_fails_its_orders(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    answers: queue.Queue[tuple[int, bool, int]] = queue.Queue()
    rank = Rank(path, 0)
    channel = Channel(path, 1, lambda *answer: answers.put(answer))
    channel.accept_all(10)
    rank.puncher.stop()
    channel._connections[0].shutdown(1)  # the worker sees the end and goes
    rank.puncher.join(10)
    channel.send(1, [Run(0, 1)])
    assert answers.get(timeout=60) == (1, False, 0)
    end(channel, [rank])


def test_stranger_is_not_taken_for_a_worker(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    channel = Channel(path, 1, lambda *_: None)
    hello = _wire.Hello(0, 1, 1, 16, PAGE, 0)  # neither this process nor a child of it
    puncher = Puncher(path, hello, None)
    puncher.start()
    with pytest.raises(LullVLLMError, match="0 of 1 workers said hello within 0 s"):
        channel.accept_all(0.2)
    puncher.stop()
    channel.close()
    puncher.join(10)


def end(channel: Channel, ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.puncher.stop()
    channel.close()
    for rank in ranks:
        rank.puncher.join(10)


def test_pool_that_is_shared_or_a_file_is_refused() -> None:
    memory = mmap.mmap(-1, 16 * PAGE)  # shared: MADV_DONTNEED would free nothing
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pages = Pages(layout_of([TensorLayout(address, 16, PAGE, PAGE)], 16, PAGE), Advice())
    with pytest.raises(LayoutError, match="is not private anonymous memory"):
        pages.prepare()


@pytest.mark.parametrize("packet", [b"{", b"[]", b'{"op":"x"}', b'{"op":"done"}', b'{"seq":1}'])
def test_packet_that_is_not_understood_is_an_error(packet: bytes) -> None:
    with pytest.raises(LullVLLMError, match="worker channel: "):
        _wire.decode(packet)


def test_messages_survive_the_wire() -> None:
    for message in (
        _wire.Hello(1, 2, 3, 4, 5, 6, "p"),
        _wire.Done(1, 2, 3, "p"),
        _wire.Punch(4, (Run(1, 2, True, False), Run(7, 1, False, True))),
    ):
        assert _wire.decode(_wire.encode(message)) == message


def test_split_keeps_every_block_and_the_neighbours() -> None:
    runs = [Run(1, 10, True, True), Run(20, 3, False, True), Run(30, 1)]
    orders = _wire.split(runs, 4)
    assert [sum(r.count for r in order) for order in orders] == [4, 4, 4, 2]
    assert orders[0] == (Run(1, 4, True, False),)
    assert orders[1] == (Run(5, 4, True, False),)
    assert orders[2] == (Run(9, 2, True, True), Run(20, 2, False, False))
    assert orders[3] == (Run(22, 1, True, True), Run(30, 1))
    many = [Run(3 * i, 1) for i in range(_wire.MAX_RUNS + 5)]
    orders = _wire.split(many, 10**9)
    assert [len(order) for order in orders] == [_wire.MAX_RUNS, 5]
    assert max(len(_wire.encode(_wire.Punch(9, order))) for order in orders) < _wire.MAX_PACKET
