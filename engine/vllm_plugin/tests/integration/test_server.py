"""A real vLLM with prefix caching, chunked prefill and async scheduling, under a sidecar's orders.

The tests of this file share one server and run in order; the last one kills its worker.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import running
from fake_sidecar import FakeSidecar
from server import Server, process_bytes
from traffic import Storm, answers, prompts

from lull_vllm import _page

pytestmark = pytest.mark.integration

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(
    model: Path, undisturbed: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    yield from running(Server(tmp_path_factory.mktemp("on"), model))


@pytest.fixture(scope="module")
def sidecar(server: Server) -> Iterator[FakeSidecar]:
    found = FakeSidecar(server.directory)
    yield found
    found.close()


def pool_bytes(sidecar: FakeSidecar) -> int:
    page = sidecar.page()
    return page["pool_blocks"] * page["block_bytes"]


def test_a_fresh_pool_is_whole_and_goes_by_the_first_order(
    server: Server, sidecar: FakeSidecar
) -> None:
    page = sidecar.page()
    assert page["mode"] == _page.MODE_HOST_PAGES and page["ranks_alive"] == 1
    assert page["blocks_mapped"] == page["blocks_free"] == page["pool_blocks"]
    whole = pool_bytes(sidecar)
    assert whole > 120 * MIB
    before = process_bytes(page["worker_pid_0"])
    page = sidecar.confirmed(sidecar.order(0))
    assert page["blocks_mapped"] == 0
    assert before - process_bytes(page["worker_pid_0"]) > 0.97 * whole
    sidecar.confirmed(sidecar.order(whole))
    assert "async_scheduling" in server.log_text() or page["steps"] == 0


def test_bound_of_an_idle_engine_frees_what_the_kernel_counts(
    server: Server, sidecar: FakeSidecar
) -> None:
    whole = pool_bytes(sidecar)
    # Distinct prompts fill the pool with cached prefixes: all of it is mapped then.
    answers(server, [[2 + (i * 7 + j) % 250 for j in range(900)] for i in range(20)], 8)
    page = sidecar.page()
    worker = page["worker_pid_0"]
    filled = page["blocks_mapped"] * page["block_bytes"]
    assert filled > 0.9 * whole and page["blocks_cached"] > 0.5 * page["pool_blocks"]
    before = process_bytes(worker)
    sidecar.confirmed(sidecar.order(whole // 8))
    page = sidecar.page()
    fell = before - process_bytes(worker)
    wanted = filled - page["blocks_mapped"] * page["block_bytes"]
    assert fell >= 0.97 * wanted, f"RSS fell by {fell / MIB:.1f} of {wanted / MIB:.1f} MiB"
    assert page["blocks_mapped"] * page["block_bytes"] <= whole // 8
    assert page["evictions"] > 0 and page["steps"] > 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0.0
    sidecar.confirmed(sidecar.order(whole))
    assert process_bytes(worker) < before - 0.9 * wanted, "a raise alone maps nothing"


def test_answers_under_a_storm_of_bounds_are_the_undisturbed_ones(
    server: Server, sidecar: FakeSidecar, undisturbed: list[list[int]]
) -> None:
    preempted = sidecar.page()["preemptions"]
    with Storm(sidecar) as storm:
        first = answers(server, prompts())
        second = answers(server, prompts(), 5)  # prefixes that are cached, or were
    assert first == undisturbed and second == undisturbed
    assert storm.orders >= 50 and storm.confirmed >= 10
    page = sidecar.page()
    assert page["flags"] == 0 and page["faults"] == 0
    assert page["preemptions"] - preempted >= 0
    assert page["preemptions"] == server.metric("vllm:num_preemptions_total")
    assert page["prefix_hits"] == server.metric("vllm:prefix_cache_hits_total") > 0


def test_nothing_is_killed_when_more_is_in_use_than_the_bound(
    server: Server, sidecar: FakeSidecar
) -> None:
    whole = pool_bytes(sidecar)
    long = [[3 + (i * 11 + j) % 200 for j in range(300)] for i in range(10)]
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(server.complete, prompt, 400) for prompt in long]
        sidecar.wait(lambda page: page["running"] >= 8 and page["blocks_used"] >= 24)
        block = sidecar.page()["block_bytes"]
        epoch = sidecar.order(8 * block)  # one request needs 6 blocks
        page = sidecar.confirmed(epoch, 60)
        assert page["blocks_used"] <= 8 and page["bound_bytes"] == 8 * block
        assert page["waiting"] > 0 and page["shortages"] > 0
        sidecar.confirmed(sidecar.order(whole))
        assert all(len(answer.result(120)) == 400 for answer in asked)
    alone = server.complete(long[0], 400)
    assert asked[0].result() == alone, "a preempted request answers as if it had not been"


def test_bound_stays_above_the_largest_running_request(
    server: Server, sidecar: FakeSidecar
) -> None:
    whole = pool_bytes(sidecar)
    block = sidecar.page()["block_bytes"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.complete, [5] * 300, 500)  # 800 tokens: 7 blocks
        sidecar.wait(lambda page: page["running"] == 1)
        epoch = sidecar.order(2 * block)
        page = sidecar.wait(lambda page: page["requested_epoch"] == epoch)
        page = sidecar.wait(lambda page: page["blocks_pending"] == 0)
        assert page["flags"] & _page.FLAG_CLAMPED and page["floor_bytes"] == 7 * block
        assert page["confirmed_epoch"] != epoch and page["bound_bytes"] == 7 * block
        assert len(asked.result(120)) == 500
        sidecar.confirmed(epoch)  # its end lets the bound come down
    assert sidecar.page()["preemptions"] == server.metric("vllm:num_preemptions_total")
    sidecar.confirmed(sidecar.order(whole))


def test_request_larger_than_the_bound_waits_and_tells_what_it_lacks(
    server: Server, sidecar: FakeSidecar
) -> None:
    block = sidecar.page()["block_bytes"]
    sidecar.confirmed(sidecar.order(3 * block))
    preempted = sidecar.page()["preemptions"]
    sidecar.bell.settimeout(0.01)
    with pytest.raises(TimeoutError):
        while True:
            sidecar.bell.recv(16)
    with ThreadPoolExecutor(1) as pool:
        # Its prompt fits, its answer would not: vLLM alone would preempt it for ever.
        asked = pool.submit(server.complete, [7] * 200, 300)
        sidecar.bell.settimeout(20)
        assert sidecar.bell.recv(16) == b"s"
        page = sidecar.page()
        assert page["waiting"] == 1 and page["running"] == 0 and page["preemptions"] == preempted
        assert page["short_bytes"] == block and page["blocks_used"] == 0
        sidecar.confirmed(sidecar.order(4 * block))
        assert len(asked.result(60)) == 300
    assert sidecar.page()["preemptions"] == preempted
    sidecar.confirmed(sidecar.order(pool_bytes(sidecar)))


def test_nobody_starves_when_the_sidecar_makes_no_room(
    server: Server, sidecar: FakeSidecar
) -> None:
    block = sidecar.page()["block_bytes"]
    prompt = [13] * 200
    start = server.complete(prompt, 20)
    sidecar.confirmed(sidecar.order(2 * block))
    with ThreadPoolExecutor(2) as pool:
        # 1,000 tokens are 8 blocks; the answer ends long before.
        asked = pool.submit(server.answer, prompt, 800, stop_token_ids=[start[-1]])
        sidecar.wait(lambda page: page["waiting"] == 1)
        behind = pool.submit(server.complete, [15] * 20, 8)
        assert asked.result(60) == start[: start.index(start[-1]) + 1]
        assert len(behind.result(60)) == 8
    assert sidecar.page()["bound_bytes"] == 2 * block
    assert server.log_text().count("for its prompt and max_tokens, more than the bound") == 1
    sidecar.confirmed(sidecar.order(pool_bytes(sidecar)))


def test_growth_that_no_request_body_tells_rings(server: Server, sidecar: FakeSidecar) -> None:
    """Beam search needs several times what its body says, and no proxy can see it come."""
    block = sidecar.page()["block_bytes"]
    sidecar.confirmed(sidecar.order(3 * block))  # one beam at a time
    sidecar.rings()
    shortages = sidecar.page()["shortages"]
    body = {
        "model": "tiny", "prompt": [17] * 300, "max_tokens": 40, "use_beam_search": True, "n": 8,
        "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/completions", body)
        sidecar.bell.settimeout(30)
        assert sidecar.bell.recv(16) == b"s"
        assert sidecar.page()["shortages"] > shortages
        sidecar.confirmed(sidecar.order(pool_bytes(sidecar)))
        status, text = asked.result(120)
    assert status == 200, text
    assert len(json.loads(text)["choices"]) == 8


def test_prefix_cache_reset_and_pause_work_while_blocks_are_withdrawn(
    server: Server, sidecar: FakeSidecar
) -> None:
    whole = pool_bytes(sidecar)
    server.complete([9] * 300, 4)
    page = sidecar.confirmed(sidecar.order(whole // 2))
    assert page["blocks_withdrawn"] > 0
    assert server.post("/reset_prefix_cache")[0] == 200
    after = sidecar.wait(lambda page: page["blocks_cached"] == 0)
    assert after["blocks_withdrawn"] == page["blocks_withdrawn"]
    assert server.post("/pause?mode=keep")[0] == 200
    sidecar.confirmed(sidecar.order(whole // 4))  # a paused engine obeys too
    assert server.post("/resume")[0] == 200
    assert len(server.complete([9] * 300, 4)) == 4
    sidecar.confirmed(sidecar.order(whole))


def test_damaged_bound_page_changes_nothing(server: Server, sidecar: FakeSidecar) -> None:
    whole = pool_bytes(sidecar)
    page = sidecar.confirmed(sidecar.order(whole // 2))
    path = sidecar.path("bound")
    for damage in (b"\xff" * 4096, b""):
        path.write_bytes(damage)
        sidecar.ring()
        seen = sidecar.wait(lambda page: page["flags"] & _page.FLAG_BOUND_CORRUPT != 0)
        assert seen["bound_bytes"] == page["bound_bytes"]
        assert len(server.complete([11] * 50, 4)) == 4
        page = sidecar.confirmed(sidecar.order(whole // 2))
        assert page["flags"] == 0
    older = sidecar.epoch
    sidecar.order(whole, epoch=older - 1)
    seen = sidecar.wait(lambda page: page["refused"] == 1)
    assert seen["bound_bytes"] == page["bound_bytes"]
    sidecar.epoch = older


def test_orphaned_engine_returns_to_the_pool_after_the_lease(
    server: Server, sidecar: FakeSidecar
) -> None:
    whole = pool_bytes(sidecar)
    sidecar.lease_s = 1.0
    page = sidecar.confirmed(sidecar.order(whole // 4))
    time.sleep(0.5)  # silence shorter than the lease
    assert sidecar.page()["bound_bytes"] == page["bound_bytes"]
    seen = sidecar.wait(lambda page: page["flags"] & _page.FLAG_LEASE_RAISED != 0)
    seen = sidecar.wait(lambda page: page["bound_bytes"] == whole)
    assert seen["flags"] & _page.FLAG_SIDECAR_GONE
    sidecar.lease_s = 10.0
    sidecar.beat()  # it was only slow: its order holds again
    sidecar.ring()
    bounded = page["bound_bytes"]
    sidecar.wait(lambda page: page["flags"] == 0 and page["bound_bytes"] == bounded)
    sidecar.confirmed(sidecar.order(whole))


def test_page_counts_every_step(server: Server, sidecar: FakeSidecar) -> None:
    tokens, missed = 900, []
    for _ in range(5):  # where others keep this process from looking, an answer may pass unseen
        before = sidecar.wait(lambda page: page["running"] == 0)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.complete, [13] * 20, tokens)
            during = sidecar.wait(
                lambda page: (
                    asked.done() or (page["running"] == 1 and page["steps"] > before["steps"] + 10)  # noqa: B023
                ),
                timeout=60.0,
            )
            asked.result(60)
        after = sidecar.wait(lambda page: page["running"] == 0)
        # One step a token; async scheduling may run one more before it sees the end.
        assert tokens <= after["steps"] - before["steps"] <= tokens + 2
        if during["running"] == 1:
            assert during["blocks_used"] >= 1 and during["step_ns"] > 0
            return
        missed.append((before, during))
    raise AssertionError(f"no page of a running request: {missed}")


def test_death_of_the_worker_is_seen(server: Server, sidecar: FakeSidecar) -> None:
    page = sidecar.page()
    os.kill(page["worker_pid_0"], signal.SIGKILL)
    server.process.wait(60)
    if sidecar.path("page").exists():  # it had no time to clear up
        beats = sidecar.page()["beats"]
        time.sleep(0.5)
        assert sidecar.page()["beats"] == beats
    with open(sidecar.path("lock"), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # nobody holds the name
