"""An engine with kvcached for the Go tests: its segment and its rules, without a GPU.

python kvcached_peer.py SEGMENT INITIAL_BYTES PAGE_BYTES [deaf]

Reads one command a line from stdin, answers one line each:

alloc N    map N page-ids, as an allocation does: "ok" or "short"
free N     unmap N page-ids; up to RESERVED stay mapped
spin N     the engine's locked read-modify-write, N times as fast as can be: "ok LIMITS", the limits it met
exit       end cleanly: the segment is unlinked (end of file: end without a word, like a crash)

deaf: the thread that looks at the limit never starts (KVCACHED_PAGE_PREALLOC_ENABLED=false).
"""

import fcntl
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WORDS = struct.Struct("=3q")
RESERVED = 2
POLL_S = 0.1


class Segment:
    """The 24 bytes, opened by path for every look, as kvcached does."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextmanager
    def locked(self, how: int, create: bool = False) -> Iterator[mmap.mmap]:
        fd = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(fd, WORDS.size)
            fcntl.flock(fd, how)
            with mmap.mmap(fd, WORDS.size) as words:
                yield words
        finally:
            os.close(fd)

    def begin(self, limit: int) -> None:
        with self.locked(fcntl.LOCK_EX, create=True) as words:
            words[:] = WORDS.pack(limit, 0, 0)

    def limit(self) -> int:
        with self.locked(fcntl.LOCK_SH) as words:
            return int(WORDS.unpack(words[:])[0])

    def update(self, used: int, ahead: int) -> int:
        """Rewrites all three words with the limit that it met, and returns that."""
        with self.locked(fcntl.LOCK_EX) as words:
            limit = int(WORDS.unpack(words[:])[0])
            words[:] = WORDS.pack(limit, used, ahead)
            return limit


class Engine:
    def __init__(self, path: str, initial: int, page: int, deaf: bool) -> None:
        self.segment, self.initial, self.page = Segment(path), initial, page
        self.pages = initial // page
        self.used = self.reserved = 0
        self.target = -1
        self.shrinking = False
        self.segment.begin(initial)
        if not deaf:
            threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            limit = self.segment.limit()
            self.target = limit if limit != self.initial else -1

    def resize(self, target: int) -> None:
        pages = target // self.page
        self.shrinking = pages < self.used
        if not self.shrinking:
            self.pages = pages
            self.reserved = min(self.reserved, pages - self.used)

    def alloc(self, n: int) -> str:
        if self.target > 0:
            self.resize(self.target)
        if self.shrinking or self.used + n > self.pages:
            self.publish()
            return "short"
        self.reserved = max(0, self.reserved - n)
        self.used += n
        self.publish()
        return "ok"

    def free(self, n: int) -> str:
        self.used -= n
        self.reserved = min(RESERVED, self.reserved + n)
        if self.shrinking and self.target > 0:
            self.resize(self.target)
        self.publish()
        return "ok"

    def spin(self, n: int) -> str:
        met: list[int] = []
        for i in range(n):
            limit = self.segment.update(i % 7 * self.page, i % 3 * self.page)
            if not met or met[-1] != limit:
                met.append(limit)
        self.publish()
        return "ok " + " ".join(map(str, met))

    def publish(self) -> None:
        self.segment.update(self.used * self.page, self.reserved * self.page)


def main() -> None:
    path, initial, page = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = Engine(path, initial, page, deaf="deaf" in sys.argv[4:])
    commands: dict[str, Callable[[int], str]] = {"alloc": engine.alloc, "free": engine.free, "spin": engine.spin}
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "exit":
            os.unlink(path)
            print("ok", flush=True)
            return
        print(commands[command](int(arguments[0])), flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
