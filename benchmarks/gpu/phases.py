"""The phases of gpu-check, each a function of (place, small) that returns its part of the result."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from job import Job, figures
from place import MIB, Gpu, Rehearsal, until_free

HERE = Path(__file__).resolve().parent
_LEFT_FREE = 512 * MIB
"""Bytes of the device that the neighbour leaves free beside training's budget."""

Place = Gpu | Rehearsal


class Neighbour:
    """neighbour.py, and how it fared."""

    def __init__(self, kind: str) -> None:
        env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "LULL_ARENA")}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "neighbour.py"), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.failures: list[str] = []
        self.takes = 0
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() or "the neighbour is gone"

    def take(self, size: int) -> None:
        """Takes bytes, or gives back what it took for 0."""
        self.takes += bool(size)
        self._tell(str(size))

    def hold(self, size: int) -> None:
        """Takes bytes for as long as it lives: with little left free it can take no more than what an order freed."""
        self._tell(str(size))
        self._tell("keep")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            said = self._answer()
        except OSError as error:
            said = str(error)
        if said != "ok":
            self.failures.append(said)

    def close(self) -> None:
        """Ends it and waits for it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def training(job: Job, batch: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Runs batches on a thread of their own; the yielded call raises what one of them raised."""
    over = threading.Event()
    broken: list[BaseException] = []

    def work() -> None:
        try:
            while not over.is_set():
                batch()
                job.optimizer.step()
        except BaseException as error:
            broken.append(error)

    def check() -> None:
        if broken:
            raise broken[0]

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield check
    finally:
        over.set()
        job.order(1 << 40, lambda ack: None)  # whatever the last one left it with, it must come to its end
        thread.join(60)
    check()


def giveback(place: Place, small: bool) -> dict[str, Any]:
    """ms until freed tensors are free on the device while work is queued behind them; one mechanism a process."""
    mechanism = os.environ["LULL_CHECK_MECHANISM"]
    from lull._torch.attach import _device_of

    pool = None
    if mechanism == "arena" or small:  # a CPU has no other: there all are the native arena
        pool = _device_of(torch.nn.Linear(1, 1).to(place.kind)).pool
        if place.kind == "cuda" and pool.name != "the CUDA arena":
            raise RuntimeError(f"the arena cannot be had: pool is {pool.name}")
    found: dict[str, Any] = {}
    for gigabytes in (1, 5, 10):
        if gigabytes * place.unit > 0.8 * place.free_bytes():
            found[str(gigabytes)] = {"n": 0, "p50": None, "p99": None, "max": None}
            continue
        found[str(gigabytes)] = figures([_one_giveback(place, pool, mechanism, gigabytes) for _ in range(5)])
    return found


def _one_giveback(place: Place, pool: Any, mechanism: str, gigabytes: int) -> float:
    size = gigabytes * place.unit
    place.synchronize()
    if pool is not None:
        pool.enable(True)
    blocks = [torch.empty(size // 64, dtype=torch.uint8, device=place.kind) for _ in range(64)]
    for block in blocks:
        block.fill_(1)
    del block
    place.synchronize()
    before = place.free_bytes()
    place.busy(0.05)  # a deep queue: it touches nothing of what goes, and is waited for all the same
    began = time.perf_counter()
    blocks.clear()
    if pool is not None:
        pool.trim(0)
        pool.enable(False)
        while pool.resident() and time.perf_counter() - began < 10:
            pool.trim(0)
    elif place.kind == "cuda":
        if mechanism == "discard":
            place.synchronize()
        torch.cuda.empty_cache()
    if until_free(place, before + int(0.95 * size), 10) == float("inf"):
        raise RuntimeError(f"{mechanism}: {size} bytes were not free after 10 s")
    return 1e3 * (time.perf_counter() - began)


def orders(place: Place, small: bool) -> dict[str, Any]:
    """Order to free, at random moments of training, and a neighbour that takes what was freed at once."""
    job = Job(place)
    elastic = job.attach()
    wanted = 12 if small else int(os.environ.get("LULL_CHECK_ORDERS", "330"))
    seconds = 30.0 if small else max(20.0, wanted / 3)
    draw = random.Random(3)
    neighbour = Neighbour(place.kind)
    ms: list[float] = []
    hows: dict[str, int] = {}
    short = 0
    try:
        for _ in range(3):
            job.timed(job.elastic_batch)  # with the step, whose state stays
        pool = elastic.device.pool
        full = max(pool.peak_resident(), 8 * MIB)
        job.order(_most(full), lambda ack: None)
        kept = 8 * MIB  # a rehearsal's free bytes are no device's
        if place.kind == "cuda":
            kept = max(0, place.free_bytes() - max(0, _most(full) - pool.resident()) - _LEFT_FREE)
        if kept:
            neighbour.hold(kept)
        with training(job, job.elastic_batch) as check:
            began = time.monotonic()
            while len(ms) + short < wanted and time.monotonic() - began < seconds:
                time.sleep(draw.uniform(0.005, 0.05))
                check()
                took = _one_order(job, place, neighbour, draw, full, hows)
                short += took is None
                ms += [] if took is None else [took]
    finally:
        neighbour.close()
        job.elastic.close()
    return {
        "pool": elastic.device.pool.name,
        "free_as_seen_by": place.source,
        "order_ms": figures(ms),
        "how": hows,
        "freed_less_than_asked": short,
        "neighbour": {"takes": neighbour.takes, "failures": neighbour.failures, "kept_bytes": kept},
    }


def _most(full: int) -> int:
    """Bytes of the budget between two orders: room for a microbatch, and no more than the neighbour leaves."""
    return full + full // 8


def _one_order(
    job: Job, place: Place, neighbour: Neighbour, draw: random.Random, full: int, hows: dict[str, int]
) -> float | None:
    """ms until the bytes are free, or None where they were not within 5 s; memory is granted back afterwards."""
    pool = job.elastic.device.pool
    answered = threading.Event()
    answers: list[Any] = []

    def reply(ack: Any) -> None:
        answers.append(ack)
        answered.set()

    held = pool.resident()
    size = min(draw.choice((full // 8, full // 4, full // 2)), held)
    if not size:
        return None
    before, began = place.free_bytes(), time.perf_counter()
    job.order(held - size, reply)
    waited = until_free(place, before + int(0.95 * size), 5.0)
    took = 1e3 * (time.perf_counter() - began)
    answered.wait(5.0)
    if answers:
        hows[answers[0].how] = hows.get(answers[0].how, 0) + 1
    if waited != float("inf"):
        neighbour.take(int(0.9 * size))
        neighbour.take(0)
    job.order(_most(full), lambda ack: None)
    return took if waited != float("inf") else None


def overhead(place: Place, small: bool) -> dict[str, Any]:
    """Seconds a batch, Lull's and plain in turns, without orders."""
    job = Job(place)
    job.attach()
    rounds = 3 if small else 12
    for _ in range(2):
        job.timed(job.plain_batch)
        job.timed(job.elastic_batch)
    plain: list[float] = []
    ours: list[float] = []
    for turn in range(rounds):
        for kind in ("plain", "ours") if turn % 2 else ("ours", "plain"):
            (plain if kind == "plain" else ours).append(
                job.timed(job.plain_batch if kind == "plain" else job.elastic_batch)
            )
    job.elastic.close()
    return {
        "plain_s": figures(plain),
        "lull_s": figures(ours),
        "ratio": statistics.median(ours) / statistics.median(plain),
        "run_ahead": os.environ.get("LULL_CUDA_RUN_AHEAD", "2"),
    }


def exact(place: Place, small: bool) -> dict[str, Any]:
    """The bits of the gradients after a storm, against the same microbatches undisturbed."""
    job = Job(place)
    elastic = job.attach()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    sizes: list[int] = []
    ran = elastic.stats.ran

    def counted(samples: int, took: float) -> None:
        sizes.append(samples)
        ran(samples, took)

    elastic.stats.ran = counted
    job.elastic_batch()
    micro_s = job.timed(job.elastic_batch) / max(1, job.shape.samples // job.shape.microbatch)
    full = max(elastic.device.pool.peak_resident(), 8 * MIB)
    differing = orders_made = 0
    batches = 3 if small else 20
    over, draw = threading.Event(), random.Random(5)

    def storm() -> None:
        nonlocal orders_made
        while not over.wait(draw.uniform(0.1, 1.5) * micro_s):  # dense, and yet microbatches come to their end
            job.order(draw.randrange(full // 2, 2 * full), lambda ack: None)
            orders_made += 1

    for _ in range(batches):
        over.clear()
        thread = threading.Thread(target=storm)
        thread.start()
        sizes.clear()
        try:
            job.elastic_batch()
        finally:
            over.set()
            thread.join()
        job.order(1 << 40, lambda ack: None)  # the storm's last one is no business of the reference
        place.synchronize()
        elastic.device.pool.trim(0)  # what it needs lies outside the pool
        got = [p.grad.clone() for p in job.model.parameters() if p.grad is not None]
        job.optimizer.zero_grad(set_to_none=True)
        start = 0
        for n in sizes:
            part: Any = job.loss(job.batch[start : start + n]) * (n / job.shape.samples)
            part.backward()
            start += n
        want = [p.grad for p in job.model.parameters() if p.grad is not None]
        differing += not all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    recomputed = elastic.stats.recomputed
    elastic.close()
    return {"batches": batches, "differing": differing, "orders": orders_made, "recomputed": recomputed}


def models(place: Place, small: bool) -> dict[str, Any]:
    """How far the memory model and a line of times are off, on microbatches of drawn sizes after the first 20."""
    job = Job(place)
    elastic = job.attach()
    elastic.backward(job.batch[: job.shape.microbatch], job.loss)
    draw = random.Random(7)
    memory: list[float] = []
    step: list[float] = []
    seen: list[tuple[int, float]] = []
    for turn in range(30 if small else 60):
        n = draw.randrange(1, job.shape.microbatch + 1)
        elastic._most = n
        job.optimizer.zero_grad(set_to_none=True)
        predicted = elastic.memory.bytes(n)
        place.synchronize()
        began = time.perf_counter()
        elastic.backward(job.batch[:n], job.loss)
        place.synchronize()
        took = time.perf_counter() - began
        peak = elastic.device.pool.peak()
        if turn >= 20:
            memory.append(abs(predicted - peak) / max(1, peak))
            step.append(abs(_line(seen, n) - took) / took)
        seen.append((n, took))
    elastic.close()
    return {"n": len(memory), "memory_mape": statistics.mean(memory), "step_time_mape": statistics.mean(step)}


def _line(seen: list[tuple[int, float]], n: int) -> float:
    """Seconds for n samples by least squares over what was seen."""
    if len({size for size, _ in seen}) < 2:
        return statistics.mean(took for _, took in seen)
    slope, base = statistics.linear_regression([size for size, _ in seen], [took for _, took in seen])
    return base + slope * n


PHASES: dict[str, Callable[[Place, bool], dict[str, Any]]] = {
    "giveback": giveback,
    "orders": orders,
    "overhead": overhead,
    "exact": exact,
    "models": models,
}
