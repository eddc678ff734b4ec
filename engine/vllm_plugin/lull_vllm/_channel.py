"""EngineCore's end of the worker channel: orders out, answers in, one connection a rank."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import _wire
from ._errors import LullVLLMError
from ._ranges import Run

logger = logging.getLogger("vllm.lull")

Answered = Callable[[int, bool, int], None]


class Channel:
    """Sends orders to every rank and reports an order when the last rank has answered it.

    answered(seq, freed, bytes a rank) runs on a reader thread; freed is false if any rank had a
    problem. One reader thread a rank: it ends when its connection does.
    """

    def __init__(self, path: Path, ranks: int, answered: Answered) -> None:
        self._path = path
        self._ranks = ranks
        self._answered = answered
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._hellos: dict[int, _wire.Hello] = {}
        self._threads: list[threading.Thread] = []
        self._owed: dict[int, set[int]] = {}  # order → ranks that have not answered
        self._freed: dict[int, tuple[bool, int]] = {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        os.chmod(path, 0o600)
        self._listener.listen(64)

    def accept_all(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Waits until every rank of this engine has said hello."""
        end = clock() + timeout
        while len(self._connections) < self._ranks:
            self._listener.settimeout(max(0.001, end - clock()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError as error:
                raise LullVLLMError(
                    f"{len(self._connections)} of {self._ranks} workers said hello within "
                    f"{timeout:.0f} s"
                ) from error
            self._welcome(connection)
        for rank, connection in self._connections.items():
            thread = threading.Thread(
                target=self._read, args=(rank, connection), name=f"lull-rank-{rank}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _welcome(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        try:
            hello = _wire.receive(connection)
        except (OSError, LullVLLMError):
            hello = None
        ours = isinstance(hello, _wire.Hello) and os.getpid() in (hello.pid, hello.parent)
        if not isinstance(hello, _wire.Hello) or not ours or hello.rank in self._hellos:
            connection.close()
            return
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._connections[hello.rank] = connection
        self._hellos[hello.rank] = hello

    @property
    def hellos(self) -> list[_wire.Hello]:
        """The ranks' introductions, in order of rank."""
        return [self._hellos[rank] for rank in sorted(self._hellos)]

    @property
    def alive(self) -> int:
        """Ranks that are connected."""
        with self._lock:
            return len(self._connections)

    def send(self, seq: int, runs: Sequence[Run]) -> None:
        """Sends one order to every rank; a rank that cannot take it has a problem."""
        packet = _wire.encode(_wire.Punch(seq, tuple(runs)))
        with self._lock:
            connections = list(self._connections.items())
            self._owed[seq] = set(range(self._ranks))
            self._freed[seq] = (True, 0)
        for rank in range(self._ranks):
            if rank not in dict(connections):
                self._done(rank, _wire.Done(seq, 0, 0, f"rank {rank} is gone"))
        for rank, connection in connections:
            try:
                connection.send(packet, socket.MSG_DONTWAIT)
            except OSError as error:
                self._done(rank, _wire.Done(seq, 0, 0, str(error)))

    def _read(self, rank: int, connection: socket.socket) -> None:
        try:
            while (message := _wire.receive(connection)) is not None:
                if isinstance(message, _wire.Done):
                    self._done(rank, message)
        except (OSError, LullVLLMError) as error:
            logger.warning("lull: worker channel of rank %d: %s; its answers are lost", rank, error)
        with self._lock:
            self._connections.pop(rank, None)
            lost = [seq for seq, ranks in self._owed.items() if rank in ranks]
        connection.close()
        for seq in lost:
            self._done(rank, _wire.Done(seq, 0, 0, f"rank {rank} is gone"))

    def _done(self, rank: int, done: _wire.Done) -> None:
        if done.problem:
            logger.warning(
                "lull: rank %d, order %d: %s; its blocks count as held",
                rank,
                done.seq,
                done.problem,
            )
        with self._lock:
            ranks = self._owed.get(done.seq)
            if ranks is None or rank not in ranks:
                return
            ranks.discard(rank)
            freed, size = self._freed[done.seq]
            self._freed[done.seq] = (freed and not done.problem, max(size, done.freed_bytes))
            if ranks:
                return
            del self._owed[done.seq]
            freed, size = self._freed.pop(done.seq)
        self._answered(done.seq, freed, size)

    def close(self) -> None:
        """Closes all connections and waits for the reader threads."""
        self._listener.close()
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)
        for connection in connections:
            connection.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
