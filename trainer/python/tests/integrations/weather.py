"""What the frameworks' tests train under: small microbatches, and orders at all times."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import lull
from lull._protocol import Budget

MIB = 1 << 20


def in_small_parts(elastic: lull.Elastic, most: int = 5) -> list[int]:
    """Microbatches of at most so many samples from now on; the list gets the size of each that counts."""
    parts: list[int] = []
    ran = elastic.stats.ran
    elastic._next_size = lambda left: min(left, most)  # type: ignore[method-assign]
    elastic.stats.ran = lambda n, took: (parts.append(n), ran(n, took))[1]  # type: ignore[method-assign]
    return parts


@contextmanager
def storm(elastic: lull.Elastic) -> Iterator[None]:
    over = threading.Event()

    def blow() -> None:
        n = 0
        while not over.wait(0.002):
            n += 1
            elastic.apply(Budget(n, (24 if n % 2 else 64) * MIB), lambda ack: None)

    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        elastic.apply(Budget(1 << 20, 64 * MIB), lambda ack: None)
