"""A sidecar, a clock and a runtime that tests of the agent can script."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from lull._agent import HelloState
from lull._config import Config
from lull._errors import ChannelError
from lull._protocol import Ack, Budget, Hello, Message, Pace, Ping, Pong, Report, Welcome, decode, encode
from lull._transport import UnixTransport

PATIENT_S = 60.0
"""How long a test waits for what should come soon."""


class FakeClock:
    """Seconds that pass only when somebody waits for them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class RecordingRuntime:
    """A runtime that writes down what it is told."""

    def __init__(self) -> None:
        self.ceiling = 1000
        self.min_budget = 10
        self.calls: list[object] = []
        self.changed = threading.Condition()
        self.fail: Exception | None = None
        self.loss: float | None = 1.0
        self.replies: list[Callable[[Ack], None]] = []
        self.answer = True

    def note(self, call: object) -> None:
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()

    def wait_for(self, call: object) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: call in self.calls, PATIENT_S), f"{call} not in {self.calls}"

    def hello(self) -> HelloState:
        return HelloState(
            device="cpu", floor=7, floor_known=True, ceiling=self.ceiling, held=5, min_budget=self.min_budget
        )

    def apply(self, order: Budget, reply: Callable[[Ack], None]) -> None:
        if self.fail is not None:
            raise self.fail
        self.ceiling = order.bytes
        self.note(("apply", order.epoch, order.bytes))
        if self.answer:
            reply(Ack(order.epoch, order.bytes, 0, 1, "drop"))
        else:
            self.replies.append(reply)

    def pace(self, pace: Pace) -> None:
        self.note(pace)

    def drain(self) -> None:
        self.note("drain")

    def lease_ended(self) -> None:
        self.ceiling = min(self.ceiling, self.min_budget)
        self.note("lease_ended")

    def report(self) -> Report:
        return Report({"activation": self.ceiling}, 1, 2, 3, 4.0, 5.0, loss=self.loss)


class Sidecar:
    """The other end, by hand: each connection of the agent is a socket pair."""

    def __init__(self) -> None:
        self._ends: list[socket.socket] = []
        self._came = threading.Condition()
        self.refuse = False
        self.attempts = 0
        self._lines: list[Line] = []

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for end in self._ends:
            end.close()

    def open(self, config: Config) -> UnixTransport:
        self.attempts += 1
        if self.refuse:
            raise ChannelError(f"connect {config.socket}: nobody there")
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENT_S)
        with self._came:
            self._ends.append(ours)
            self._came.notify_all()
        return UnixTransport(theirs)

    def accept(self) -> Line:
        with self._came:
            assert self._came.wait_for(lambda: self._ends, PATIENT_S), "the agent did not connect"
            self._lines.append(Line(self._ends.pop(0)))
            return self._lines[-1]

    def welcome(self, *, heartbeat_ms: int = 60_000, lease_ms: int = 10_000) -> tuple[Line, Hello]:
        line = self.accept()
        hello = line.read()
        assert isinstance(hello, Hello)
        line.send(Welcome(1, 7, heartbeat_ms, lease_ms))
        return line, hello


class Line:
    """One connection, seen from the sidecar."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._in = sock.makefile("rb")

    def send(self, *messages: Message) -> None:
        self.write(b"".join(encode(m) for m in messages))

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self) -> Message:
        """The next message that is no report."""
        while True:
            line = self._in.readline()
            assert line, "the agent closed the connection"
            message = decode(line)
            if not isinstance(message, Report):
                return message

    def report(self) -> Report:
        while True:
            message = decode(self._in.readline())
            if isinstance(message, Report):
                return message

    def synced(self) -> None:
        """Returns when the agent has handled all that was sent."""
        self.send(Ping(99))
        while self.read() != Pong(99):
            pass

    def ended(self) -> None:
        while self._in.readline():
            pass

    def close(self) -> None:
        self._in.close()
        self.sock.close()
