"""Many small orders: does the job ever hold more than it has acked, until it is granted more again?

Each order takes 1 to 8 MiB of what the job holds at a random moment of its work, half of them with a deadline. From its
ack until the memory is granted back the job's RssAnon + RssShmem is read all the time: a reading above baseline + floor
+ what the ack promised is a rebound. What the job lost by it is counted too, seconds discarded and computed again, and
apart for orders with a deadline: one that is too short for another way costs the microbatch. A job that waits for its
turn on a busy machine cannot rise, so how long it had a core stands beside how long it was read.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from handover_bars import figures
from handover_link import Job

from lull._protocol import Ack

MIB = 1 << 20
_LONGEST_S = 5.0
"""Seconds after which an order without an ack is counted as lost."""
_DEADLINES_US = (5_000, 50_000)
"""Where an order has a deadline, one of these."""
_AT_LEAST = 0.6
"""Share of the budget that an order is told from where the job holds less: far below it no microbatch fits."""
_RUN = 50
"""Orders in a row that all have a deadline, or none: a block that one emptied may run again only some orders later."""
_TOLD = 500
"""Orders after which stderr hears how far the storm is."""


class Storm:
    """What was seen of one method."""

    def __init__(self) -> None:
        self.ack_ms: list[float] = []
        self.how: dict[str, int] = {}
        self.rebounds = 0
        self.worst = 0
        self.readings = 0
        self.lost = 0
        self.watched_s = 0.0
        self.ran_s = 0.0
        self.sent = {True: 0, False: 0}
        """Orders with a deadline, and without."""
        self.work_lost_s = {True: 0.0, False: 0.0}
        """By the same."""

    def summary(self) -> dict[str, Any]:
        """As the report has it."""
        orders = len(self.ack_ms) + self.lost
        lost_s = sum(self.work_lost_s.values())
        per_order = {dated: lost / max(1, self.sent[dated]) for dated, lost in self.work_lost_s.items()}
        return {
            "orders": orders,
            "without_ack": self.lost,
            "ack": figures(self.ack_ms),
            "how": dict(sorted(self.how.items())),
            "readings": self.readings,
            "rebounds": self.rebounds,
            "worst_rebound_bytes": self.worst,
            "watched_s": round(self.watched_s, 3),
            "ran_meanwhile_s": round(self.ran_s, 3),
            "work_lost_s": round(lost_s, 4),
            "work_lost_per_order_s": round(lost_s / max(1, orders), 6),
            "work_lost_per_order_without_deadline_s": round(per_order[False], 6),
            "work_lost_per_order_with_deadline_s": round(per_order[True], 6),
        }


def run_storm(job: Job, method: str, orders: int, budget: int, seed: int, max_seconds: float = 0) -> dict[str, Any]:
    """`orders` shrinks of one method from `budget` bytes, each granted back a few milliseconds after its ack."""
    draw, seen = random.Random(seed), Storm()
    first = job.tell(f"release {method}")
    job.order(budget)
    job.rest(0.5)
    limit = first["baseline"] + first["floor"]
    began = time.monotonic()
    for done in range(0, orders, _RUN):
        if max_seconds and time.monotonic() - began > max_seconds:
            break
        if done and done % _TOLD == 0:
            told = f"{done} of {orders} orders of {method}, {seen.rebounds} rebounds"
            print(f"handover_storm: {told}", file=sys.stderr, flush=True)
        dated, count = done // _RUN % 2 == 1, min(_RUN, orders - done)
        before = job.tell("stats")
        for _ in range(count):
            _one(job, seen, budget, draw.choice(_DEADLINES_US) if dated else 0, limit, draw)
        after = job.tell("stats")
        seen.sent[dated] += count
        seen.work_lost_s[dated] += sum(after[key] - before[key] for key in ("lost_s", "recompute_s"))
    return seen.summary()


def _one(job: Job, seen: Storm, budget: int, within_us: int, limit: int, draw: random.Random) -> None:
    """One order, what is held from its ack on, and the grant."""
    job.rest(draw.uniform(0.001, 0.03))
    holds = min(max(job.tell("stats")["resident"], int(_AT_LEAST * budget)), budget)
    sent = time.perf_counter()
    epoch = job.order(holds - draw.randint(1, 8) * MIB, within_us)
    ack = _ack_of(job, epoch, sent)
    if ack is None:
        seen.lost += 1
    else:
        seen.ack_ms.append((time.perf_counter() - sent) * 1e3)
        seen.how[ack.how] = seen.how.get(ack.how, 0) + 1
        _watch(job, seen, limit + ack.held, draw.uniform(0.002, 0.02))
    job.order(budget)


def _ack_of(job: Job, epoch: int, sent: float) -> Ack | None:
    while time.perf_counter() - sent < _LONGEST_S:
        for ack in job.acks():
            if ack.epoch == epoch:
                return ack
    return None


def _watch(job: Job, seen: Storm, most: int, seconds: float) -> None:
    """Reads until the time is over; a rebound is counted once an order."""
    began, ran, above = time.perf_counter(), job.ran_s(), 0
    while time.perf_counter() < began + seconds:
        above = max(above, job.rss() - most)
        seen.readings += 1
    seen.watched_s += time.perf_counter() - began
    seen.ran_s += job.ran_s() - ran
    seen.rebounds += above > 0
    seen.worst = max(seen.worst, above)


def line(method: str, found: dict[str, Any]) -> str:
    """One method for people."""
    ack = found["ack"]
    times = f"P50 {ack['p50_ms']:.2f} P99 {ack['p99_ms']:.2f} max {ack['max_ms']:.2f} ms" if ack["n"] else "no ack"
    return (
        f"storm {method:11}{found['orders']:>7} orders, ack {times}; {found['rebounds']} rebounds above the ceiling "
        f"(worst {found['worst_rebound_bytes']} B, {found['readings']} readings); lost "
        f"{found['work_lost_per_order_s']:.5f} s an order; {found['without_ack']} without an ack"
    )
