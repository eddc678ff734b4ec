"""The same requests for every server, and a storm of bounds."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from fake_sidecar import FakeSidecar
from server import Server

TOKENS = 48


def prompts(count: int = 40, seed: int = 5) -> list[list[int]]:
    """Returns prompts of 20 to 700 tokens; half of them share one of two long beginnings."""
    chooser = random.Random(seed)
    shared = [[chooser.randrange(2, 258) for _ in range(400)] for _ in range(2)]
    found = []
    for number in range(count):
        own = [chooser.randrange(2, 258) for _ in range(chooser.randint(20, 300))]
        found.append(shared[number % 4] + own if number % 4 < 2 else own)
    return found


def answers(server: Server, asked: list[list[int]], at_once: int = 12) -> list[list[int]]:
    """Returns the greedy answers, asked so many at once."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: server.complete(prompt, TOKENS), asked))


class Storm:
    """Orders random bounds, from none to the whole pool, as long as it lasts."""

    def __init__(self, sidecar: FakeSidecar, seed: int = 1) -> None:
        self._sidecar = sidecar
        self._random = random.Random(seed)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._blow)
        self.orders = 0
        self.confirmed = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        page = self._sidecar.page()
        self._sidecar.confirmed(self._sidecar.order(page["pool_blocks"] * page["block_bytes"]))
        if self.error is not None:
            raise self.error

    def _blow(self) -> None:
        try:
            page = self._sidecar.page()
            while not self._end.is_set():
                blocks = self._random.randint(0, page["pool_blocks"])
                epoch = self._sidecar.order(blocks * page["block_bytes"])
                self.orders += 1
                end = time.monotonic() + self._random.choice([0.005, 0.02, 0.1])
                while time.monotonic() < end:
                    seen = self._sidecar.page()
                    if seen["confirmed_epoch"] == epoch:
                        assert seen["blocks_mapped"] <= blocks
                        assert seen["bound_bytes"] == blocks * page["block_bytes"]
                        self.confirmed += 1
                        break
                    time.sleep(0.001)
                self._end.wait(max(0.0, end - time.monotonic()))
        except BaseException as error:
            self.error = error
