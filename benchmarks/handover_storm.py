"""Many small orders: does the job ever hold more than it has acked, until it is granted more again?

Each order takes 1 to 8 MiB at a random moment of the job's work, some with a deadline. From its ack until the memory
is granted back the job's RssAnon + RssShmem is read all the time: a reading above baseline + floor + what the ack
promised is a rebound. What the job lost by it is counted too: seconds discarded and computed again.
"""

from __future__ import annotations

import random
import time
from typing import Any

from handover_bars import figures
from handover_link import Job

from lull._protocol import Ack

MIB = 1 << 20
_LONGEST_S = 5.0
"""Seconds after which an order without an ack is counted as lost."""


class Storm:
    """What was seen of one method."""

    def __init__(self) -> None:
        self.ack_ms: list[float] = []
        self.how: dict[str, int] = {}
        self.rebounds = 0
        self.worst = 0
        self.readings = 0
        self.lost = 0

    def summary(self, lost_s: float) -> dict[str, Any]:
        """`lost_s` is the work that the job lost meanwhile."""
        orders = len(self.ack_ms) + self.lost
        return {
            "orders": orders,
            "without_ack": self.lost,
            "ack": figures(self.ack_ms),
            "how": dict(sorted(self.how.items())),
            "readings": self.readings,
            "rebounds": self.rebounds,
            "worst_rebound_bytes": self.worst,
            "work_lost_s": round(lost_s, 4),
            "work_lost_per_order_s": round(lost_s / max(1, orders), 6),
        }


def run_storm(job: Job, method: str, orders: int, budget: int, seed: int, max_seconds: float = 0) -> dict[str, Any]:
    """`orders` shrinks of one method from `budget` bytes, each granted back a few milliseconds after its ack."""
    draw, seen = random.Random(seed), Storm()
    first = job.tell(f"release {method}")
    job.order(budget)
    job.rest(0.5)
    limit = first["baseline"] + first["floor"]
    began = time.monotonic()
    for _ in range(orders):
        if max_seconds and time.monotonic() - began > max_seconds:
            break
        job.rest(draw.uniform(0.001, 0.03))
        sent = time.perf_counter()
        epoch = job.order(budget - draw.randint(1, 8) * MIB, draw.choice((0, 0, 5_000, 50_000)))
        ack = _ack_of(job, epoch, sent)
        if ack is None:
            seen.lost += 1
        else:
            seen.ack_ms.append((time.perf_counter() - sent) * 1e3)
            seen.how[ack.how] = seen.how.get(ack.how, 0) + 1
            _watch(job, seen, limit + ack.held, draw.uniform(0.002, 0.01))
        job.order(budget)
    last = job.tell("stats")
    lost = sum(last[key] - first[key] for key in ("lost_s", "recompute_s"))
    return seen.summary(lost)


def _ack_of(job: Job, epoch: int, sent: float) -> Ack | None:
    while time.perf_counter() - sent < _LONGEST_S:
        for ack in job.acks():
            if ack.epoch == epoch:
                return ack
    return None


def _watch(job: Job, seen: Storm, most: int, seconds: float) -> None:
    """Reads until the time is over; a rebound is counted once an order."""
    end, above = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        above = max(above, job.rss() - most)
        seen.readings += 1
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
