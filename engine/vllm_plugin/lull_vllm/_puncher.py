"""Gives the pages of withdrawn blocks back to the kernel, inside a worker process.

One thread owns the connection to EngineCore and makes every madvise call; it never touches a
tensor. A worker that loses EngineCore ends with it, so the thread simply tries again to connect.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import _wire
from ._advice import NOHUGEPAGE, Advice
from ._errors import LayoutError, LullVLLMError
from ._process import is_private_anonymous
from ._ranges import Layout, Run

logger = logging.getLogger("vllm.lull")

_RETRY_S = 0.05


class Pages:
    """The pages of a pool of KV blocks on this rank."""

    def __init__(self, layout: Layout, advice: Advice) -> None:
        self._layout = layout
        self._advice = advice

    def prepare(self) -> None:
        """Checks that giving back can work here, and keeps huge pages out of the pool.

        A hole in a huge page lowers RSS but waits on the kernel's deferred-split list: the memory
        is not free until the kernel is short of it. With MADV_NOHUGEPAGE each page is its own.
        """
        whole = [Run(0, self._layout.blocks)]
        for address, length in self._layout.pages_of(whole):
            if not is_private_anonymous(address, length):
                raise LayoutError(f"the pool at {address:#x} is not private anonymous memory")
            self._advice.give(address, length, NOHUGEPAGE)

    def give_back(self, runs: Sequence[Run]) -> int:
        """Gives the runs' pages back and returns their bytes."""
        return self._advice.drop(self._layout.pages_of(runs))


class Puncher:
    """Serves EngineCore's orders on a thread of its own.

    The thread is a daemon: it ends with the process, or when stop was called and the connection
    ends.
    """

    def __init__(
        self,
        path: Path,
        hello: _wire.Hello,
        pages: Pages | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._path = path
        self._hello = hello
        self._pages = pages
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="lull-puncher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current connection; tests use it."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(str(self._path))
                    connection.sendall(_wire.encode(self._hello))
                    self._answer(connection)
            except (OSError, LullVLLMError) as error:
                logger.debug("lull: worker channel %s: %s; trying again", self._path, error)
            self._stopped.wait(_RETRY_S)

    def _answer(self, connection: socket.socket) -> None:
        while (message := _wire.receive(connection)) is not None:
            if isinstance(message, _wire.Punch):
                connection.sendall(_wire.encode(self._obey(message)))

    def _obey(self, order: _wire.Punch) -> _wire.Done:
        started = self._clock()
        freed, problem = 0, ""
        try:
            if self._pages is None:
                raise LayoutError(self._hello.problem)
            freed = self._pages.give_back(order.runs)
        except (OSError, LayoutError) as error:
            problem = str(error)
        return _wire.Done(order.seq, freed, round((self._clock() - started) * 1e6), problem)
