"""The shared pages: a fixed layout of little-endian 64-bit words under a seqlock and a checksum.

docs/VLLM.md has the table of offsets and fields; testdata/pages.json holds this module and the
Go reader to it. Standard library only: the layout is testable without vLLM and without torch.

A page has one writer, which copies a whole page with an even, higher sequence in one go (a writer
that cannot makes the sequence odd first). A reader that sees an odd or changed sequence, or a
checksum that does not match, tries again. The checksum covers the sequence too, so that a reader
on a processor that reorders stores still refuses a torn page instead of believing it.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._errors import PageError

VERSION = 1
SIZE = 4096
HEADER = 32  # magic 8, version u32, field count u32, sequence u64, checksum u64

TELEMETRY_MAGIC = b"LULLKVT\x01"
BOUND_MAGIC = b"LULLKVB\x01"

# The order is the layout: a new field goes at the end, a changed meaning needs a new VERSION.
TELEMETRY_FIELDS: tuple[str, ...] = (
    "instance",
    "beats",
    "written_ns",
    "engine_pid",
    "mode",
    "flags",
    "ranks",
    "ranks_alive",
    "block_tokens",
    "block_bytes",
    "pool_blocks",
    "max_model_len",
    "baseline_bytes",
    "blocks_used",
    "blocks_free",
    "blocks_cached",
    "blocks_withdrawn",
    "blocks_pending",
    "blocks_mapped",
    "bound_bytes",
    "requested_epoch",
    "requested_bytes",
    "applied_epoch",
    "confirmed_epoch",
    "refused",
    "floor_bytes",
    "running",
    "waiting",
    "waiting_capacity",
    "waiting_deferred",
    "preemptions",
    "steps",
    "step_tokens",
    "step_ns",
    "prefix_queries",
    "prefix_hits",
    "evictions",
    "shortages",
    "short_bytes",
    "faults",
    "given_back_bytes",
    "given_back_ns",
    "worker_pid_0",
    "worker_pid_1",
    "worker_pid_2",
    "worker_pid_3",
    "worker_pid_4",
    "worker_pid_5",
    "worker_pid_6",
    "worker_pid_7",
    "obeyed_step",
    "obeyed_left",
)

BOUND_FIELDS: tuple[str, ...] = (
    "instance",
    "epoch",
    "bytes",
    "beats",
    "lease_us",
    "sidecar_pid",
)

# Values of the field "mode".
MODE_TELEMETRY = 0
MODE_HOST_PAGES = 1
MODE_KVCACHED = 2

# Bits of the field "flags".
FLAG_CLAMPED = 1 << 0  # a live request needs more than the requested bound
FLAG_SIDECAR_GONE = 1 << 1  # no sign of the sidecar within its lease
FLAG_LEASE_RAISED = 1 << 2  # after the lease the bound went back to the whole pool
FLAG_BROKEN = 1 << 3  # the plugin met an error and froze; vLLM goes on
FLAG_BOUND_CORRUPT = 1 << 4  # the bound page cannot be trusted; the last bound stays

_MASK = (1 << 64) - 1
_READ = 512  # more than any bound page of this version uses; a newer writer may add fields


def encode(magic: bytes, seq: int, words: Sequence[int]) -> bytes:
    """Returns the header and the words of a whole page; seq must be even."""
    if seq & 1:
        raise ValueError(f"page: sequence {seq} is odd, want an even one")
    body = struct.pack(f"<{len(words)}Q", *(w & _MASK for w in words))
    crc = zlib.crc32(body, zlib.crc32(struct.pack("<Q", seq)))
    return magic + struct.pack("<IIQQ", VERSION, len(words), seq, crc) + body


def decode(magic: bytes, raw: bytes, fields: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Returns the sequence and the fields; fields that the writer did not know read 0."""
    if len(raw) < HEADER:
        raise PageError(f"page: {len(raw)} bytes, want at least {HEADER}")
    if raw[:8] != magic:
        raise PageError(f"page: magic {raw[:8]!r}, want {magic!r}")
    version, count, seq, crc = struct.unpack_from("<IIQQ", raw, 8)
    if version != VERSION:
        raise PageError(f"page: version {version}, want {VERSION}")
    end = HEADER + 8 * count
    if end > SIZE or end > len(raw):
        raise PageError(f"page: {count} fields do not fit in {len(raw)} bytes")
    if seq & 1:
        raise PageError(f"page: sequence {seq} is odd: a write is under way")
    body = raw[HEADER:end]
    if zlib.crc32(body, zlib.crc32(struct.pack("<Q", seq))) != crc:
        raise PageError(f"page: checksum does not match at sequence {seq}")
    words = struct.unpack(f"<{count}Q", body)
    return seq, {name: words[i] if i < count else 0 for i, name in enumerate(fields)}


class PageWriter:
    """Creates a page under its final name and writes it through a mapping, without a system call.

    Not thread-safe: the caller holds a lock.
    """

    def __init__(self, path: Path, magic: bytes, fields: Sequence[str]) -> None:
        self.path = path
        self._magic = magic
        self._fields = tuple(fields)
        self._seq = 0
        self._pack_body = struct.Struct(f"<{len(self._fields)}Q").pack
        self._pack_seq = struct.Struct("<Q").pack
        self._pack_head = struct.Struct("<8sIIQQ").pack
        self._end = HEADER + 8 * len(self._fields)
        create(path, encode(magic, 0, [0] * len(self._fields)))
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)

    def write(self, words: Sequence[int]) -> None:
        """Publishes the words, in the order of the fields."""
        self._seq = seq = self._seq + 2
        body = self._pack_body(*words)
        crc = zlib.crc32(body, zlib.crc32(self._pack_seq(seq)))
        # One statement: another thread of this process cannot come in between and leave the page
        # half-written for as long as it holds the interpreter.
        self._map[: self._end] = self._pack_head(self._magic, VERSION, len(words), seq, crc) + body

    def close(self) -> None:
        """Unmaps the page and removes its file if it is still ours."""
        self._map.close()
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except OSError:
            pass


class PageReader:
    """Reads a page that another process writes, with pread.

    A mapping would turn a truncated file into a SIGBUS that ends the engine; pread turns it into
    a short read, which is an error like any other.
    """

    def __init__(self, path: Path, magic: bytes, fields: Sequence[str]) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._magic = magic
        self._fields = tuple(fields)
        self._last: bytes | None = None

    def read(self) -> dict[str, int] | None:
        """Returns the fields if they changed since the last call, else None."""
        raw = os.pread(self._fd, _READ, 0)
        if raw == self._last:
            return None
        error: PageError | None = None
        for _ in range(4):
            try:
                _, value = decode(self._magic, raw, self._fields)
            except PageError as caught:
                error = caught
                raw = os.pread(self._fd, _READ, 0)
                continue
            self._last = raw
            return value
        assert error is not None
        raise error

    def changed(self) -> bool:
        """Whether the page differs from what read returned last."""
        return os.pread(self._fd, _READ, 0) != self._last

    def close(self) -> None:
        os.close(self._fd)


def create(path: Path, head: bytes) -> None:
    """Puts a new zero-filled page with this head under path, whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, head.ljust(SIZE, b"\0"))
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)


def words(fields: Sequence[str], values: Mapping[str, int]) -> list[int]:
    """Returns the values in the order of the fields; absent ones are 0."""
    return [values.get(name, 0) for name in fields]
