"""The connection that is open now, which several threads write to and one replaces."""

from __future__ import annotations

import threading

from lull._protocol import Message, encode
from lull._transport import Transport

__all__ = ["Link"]


class Link:
    """Holds at most one Transport. `send` never waits for the sidecar, and says False when there is
    no connection or it takes no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conn: Transport | None = None

    def open(self, conn: Transport) -> None:
        """Makes conn the connection that send writes to."""
        with self._lock:
            self._conn = conn

    def drop(self) -> None:
        """Closes the connection, if there is one."""
        with self._lock:
            conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def send(self, message: Message) -> bool:
        line = encode(message)
        with self._lock:
            return self._conn is not None and self._conn.send(line)

    def abort(self) -> None:
        """Makes the reading thread's recv end."""
        with self._lock:
            if self._conn is not None:
                self._conn.abort()

    def fileno(self) -> int:
        """The descriptor, -1 when there is no connection."""
        with self._lock:
            return -1 if self._conn is None else self._conn.fileno()

    def forked(self) -> None:
        """In a forked child: closes its copy. The lock may be held by a thread that is not here."""
        self._lock = threading.Lock()
        self.drop()
