"""What is measured of lull-vllm. Every function gives plain figures; nothing is trimmed."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from handover_bars import figures
from rig import (
    MIB,
    FakeSidecar,
    Server,
    Streams,
    alone,
    process_bytes,
    ttft,
    warm,
)

FREED = 0.97
"""Share of the ordered bytes that the kernel must show free."""

LOOK_S = 0.0002
"""Between two looks at /proc, which it adds to a figure at most; a look that never rests would take a core from those
who are looked at."""


def distinct(seed: int, count: int, tokens: int) -> list[list[int]]:
    """Prompts that share no prefix."""
    chooser = random.Random(seed)
    return [[chooser.randrange(2, 258) for _ in range(tokens)] for _ in range(count)]


def fill(server: Server, sidecar: FakeSidecar, seed: int) -> dict[str, int]:
    """Maps the whole pool: distinct prompts fill it with cached prefixes."""
    while True:
        page: dict[str, int] = sidecar.page()
        missing = page["pool_blocks"] - page["blocks_mapped"]
        if missing <= 2:
            return page
        # Whole blocks, with the one generated token whose KV is kept: a block that is touched in part counts as
        # mapped and holds less.
        blocks = 7
        tokens = blocks * page["block_tokens"] - 1
        warm(server, distinct(seed, max(1, missing // blocks + 1), tokens), 2)
        seed += 1


def release(server: Server, sidecar: FakeSidecar, sizes_mib: Sequence[int], count: int) -> dict[str, Any]:
    """Order -> bytes seen free in /proc, idle engine, whole pool mapped before each order; sizes take turns."""
    ms: dict[int, list[float]] = {size: [] for size in sizes_mib}
    for turn in range(count):
        for size in sizes_mib:
            page = fill(server, sidecar, 1000 * turn + size)
            worker, block = page["worker_pid_0"], page["block_bytes"]
            before = process_bytes(worker)
            blocks = page["blocks_mapped"] - size * MIB // block
            began = time.perf_counter()
            epoch = sidecar.order(blocks * block)
            goal = before - FREED * size * MIB
            while process_bytes(worker) > goal:
                time.sleep(LOOK_S)
                if time.perf_counter() - began > 10:
                    raise RuntimeError(f"{size} MiB not free after 10 s: {sidecar.page()}")
            ms[size].append((time.perf_counter() - began) * 1e3)
            sidecar.confirmed(epoch)
            sidecar.confirmed(sidecar.order(page["pool_blocks"] * block))
    return {
        f"{size}MiB": {**figures(values), "bar_ms": round(5 + size * MIB / 10e9 * 1e3, 1)}
        for size, values in ms.items()
    }


def withdrawal(server: Server, sidecar: FakeSidecar, count: int) -> dict[str, Any]:
    """Steps from an order until every free block above it is out of the queue, as the page says it, and until somebody
    could see all of it out, 8 streams running. A block that a stream took between the look and the order is in use,
    and no order takes those; on a machine without a core to spare, who looks is late by himself."""
    chooser = random.Random(1)
    obeyed: list[int] = []
    left: list[int] = []
    seen: list[int] = []
    with Streams(server, 8):
        page = sidecar.wait(lambda p: p["running"] >= 8)
        whole = page["pool_blocks"]
        for turn in range(count):
            page = sidecar.page()
            blocks = whole if turn % 2 else chooser.randint(page["blocks_used"] + 16, whole - 1)
            before = page["steps"]
            epoch = sidecar.order(blocks * page["block_bytes"])
            page = sidecar.wait(lambda p, epoch=epoch: p["requested_epoch"] == epoch)
            obeyed.append(page["obeyed_step"] - before)
            left.append(page["obeyed_left"])
            page = sidecar.wait(lambda p, epoch=epoch: p["applied_epoch"] == epoch)
            seen.append(page["steps"] - before)
            time.sleep(chooser.uniform(0.01, 0.05))
        sidecar.confirmed(sidecar.order(whole * page["block_bytes"]))
    return {"n": count, **within(obeyed), "free_blocks_left_max": max(left), "seen_in_full": within(seen)}


def within(steps: Sequence[int]) -> dict[str, int]:
    return {"max_steps": max(steps), "within_one": sum(s <= 1 for s in steps)}


def age(server: Server, sidecar: FakeSidecar, seconds: float) -> dict[str, Any]:
    """Age of the page whenever one looks, and whether each step's page could be seen, 8 streams running."""
    ages: list[float] = []
    written: dict[int, int] = {}
    with Streams(server, 8):
        sidecar.wait(lambda p: p["running"] >= 8)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            looked = time.monotonic_ns()  # before: what keeps the onlooker from his clock afterwards makes no page old
            page = sidecar.page()
            ages.append(max(0, looked - page["written_ns"]) / 1e6)
            written.setdefault(page["steps"], page["written_ns"])
            time.sleep(0.001)
    order = sorted(written)
    gaps = [(written[b] - written[a]) / 1e6 / (b - a) for a, b in itertools.pairwise(order)]
    between = figures(gaps)
    return {"age": figures(ages), "between_steps": between, "steps": order[-1] - order[0], "pages_seen": len(order)}


SHARED = 16
"""Beginnings of 512 tokens that the prompts of a burst share: a quarter of the pool."""


def idle_price(plugin: Server, sidecar: FakeSidecar, stock: Server, bursts: int) -> dict[str, Any]:
    """What lending an idle pool costs: prefix hits and TTFT of bursts whose prompts share beginnings.

    Arms take turns. `kept` is a stock vLLM, whose pool and cache stay. Before each burst of the others the idle
    engine is ordered down, and to the whole pool when the burst begins: `default` to an eighth of its pool, which is
    what `lull serve` leaves an idle engine where nothing else is configured (min_bound), `told` to 5 %.
    """
    page = sidecar.page()
    whole, block = page["pool_blocks"], page["block_bytes"]
    shared = distinct(77, SHARED, 512)
    arms = {"kept": (stock, whole), "default": (plugin, whole // 8), "told": (plugin, whole // 20)}
    out: dict[str, dict[str, Any]] = {name: {"ttft": [], "hits": 0.0, "queries": 0.0} for name in arms}
    idle: list[float] = []
    for burst in range(bursts + 1):
        own = distinct(burst, SHARED, 32)
        for name, (server, left) in arms.items():
            with alone(plugin if server is stock else stock):
                if server is plugin:
                    sidecar.confirmed(sidecar.order(left * block))
                    if name == "told":
                        idle.append(sidecar.page()["blocks_mapped"] / whole)
                    sidecar.confirmed(sidecar.order(whole * block))
                before = cache_counts(server)
                firsts = [ttft(server, start + tail, 16) for start, tail in zip(shared, own, strict=True)]
                after = cache_counts(server)
            if burst:  # the first burst meets an empty cache
                out[name]["ttft"] += firsts
                out[name]["hits"] += after[0] - before[0]
                out[name]["queries"] += after[1] - before[1]
    rows = {
        n: {"ttft": figures(seen["ttft"]), "hit_rate": round(seen["hits"] / seen["queries"], 4)}
        for n, seen in out.items()
    }
    return {**rows, "idle_pool_share_max": round(max(idle), 4), "bursts": bursts}


def cache_counts(server: Server) -> tuple[float, float]:
    """Tokens found in the prefix cache, and looked up, since the start."""
    return server.metric("vllm:prefix_cache_hits_total"), server.metric("vllm:prefix_cache_queries_total")
