"""Messages between EngineCore and the puncher thread of each worker process.

A sequenced-packet Unix socket in the private directory carries one JSON object a packet, both ends
of this package and of one version. It does not ride on vLLM's step loop, and the death of either
end is an end of file.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ._errors import LullVLLMError
from ._ranges import Run

MAX_PACKET = 1 << 16
MAX_RUNS = 2000  # keeps a packet of runs below MAX_PACKET


@dataclass(frozen=True)
class Hello:
    """A worker introduces itself."""

    rank: int
    pid: int
    parent: int
    blocks: int
    block_bytes: int
    baseline_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Done:
    """A worker gave the pages of one order back, or says what went wrong."""

    seq: int
    freed_bytes: int
    took_us: int
    problem: str = ""


@dataclass(frozen=True)
class Punch:
    """Give back the pages of these runs."""

    seq: int
    runs: tuple[Run, ...]


Message = Hello | Done | Punch


def encode(message: Message) -> bytes:
    """Returns one packet."""
    if isinstance(message, Punch):
        runs = [[r.first, r.count, int(r.left), int(r.right)] for r in message.runs]
        value: dict[str, Any] = {"op": "punch", "seq": message.seq, "runs": runs}
    else:
        value = {"op": type(message).__name__.lower(), **asdict(message)}
    return json.dumps(value, separators=(",", ":")).encode()


def decode(packet: bytes) -> Message:
    """Reads one packet."""
    try:
        value = json.loads(packet)
        op = value.pop("op")
        if op == "punch":
            runs = tuple(Run(f, n, bool(a), bool(b)) for f, n, a, b in value["runs"])
            return Punch(int(value["seq"]), runs)
        if op == "hello":
            return Hello(**value)
        if op == "done":
            return Done(**value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LullVLLMError(f"worker channel: packet {packet[:80]!r}: {error}") from error
    raise LullVLLMError(f"worker channel: unknown message {op!r}")


def receive(connection: socket.socket) -> Message | None:
    """Returns the next message, or None at the end."""
    packet = connection.recv(MAX_PACKET)
    return decode(packet) if packet else None


def split(runs: Sequence[Run], max_blocks: int) -> list[tuple[Run, ...]]:
    """Cuts runs into orders of at most max_blocks blocks, so that confirmations come steadily."""
    orders: list[tuple[Run, ...]] = []
    current: list[Run] = []
    room = max_blocks
    for run in runs:
        at = run
        while at.count > room or len(current) >= MAX_RUNS:
            if room and len(current) < MAX_RUNS:
                # Halves of one run do not count as each other's neighbour: the page that both
                # share stays until the second half goes.
                current.append(Run(at.first, room, at.left, False))
                at = Run(at.first + room, at.count - room, True, at.right)
            orders.append(tuple(current))
            current, room = [], max_blocks
        current.append(at)
        room -= at.count
    if current:
        orders.append(tuple(current))
    return orders
