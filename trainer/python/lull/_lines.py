"""What the trainer's end of the control channel does with each line, and what it says by itself.

Standard library only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from lull._config import Config
from lull._contract import Runtime
from lull._errors import LineError, LineTooLong, ProtocolError
from lull._floor import FloorQuestion
from lull._greeting import Greeting
from lull._lease import Lease
from lull._link import Link
from lull._protocol import (
    MAX_LINE,
    VERSION,
    Ack,
    Budget,
    Bye,
    Drain,
    Error,
    Message,
    Pace,
    Ping,
    Pong,
    Refused,
    Welcome,
    Yield,
    decode,
)
from lull._transport import Transport

__all__ = ["Lines"]

_log = logging.getLogger("lull")


class Lines:
    """The state of one trainer's channel, and the answers to its lines. The agent's thread, but for what is sent."""

    def __init__(self, config: Config, runtime: Runtime, clock: Callable[[], float]) -> None:
        self._config = config
        self._runtime = runtime
        self._clock = clock

        self._link = Link()
        self._send = self._link.send
        self._welcomed = False
        self._greeting: Greeting | None = None
        self._refused = ""
        self._uncounted = False  # the sidecar cannot read this process's memory
        self._heartbeat_s = 1.0
        self._lease = Lease()
        self._report_at = 0.0

        self._last_epoch = 0
        self._granted = 0  # by the last order; before one, the ceiling of hello
        self._held = 0
        self._said = ""  # the last trouble that was logged
        self._told = False  # whether the sidecar said on this connection what it does not like
        self._floor = FloorQuestion()

    def _take(self, conn: Transport, data: bytes) -> bytes:
        """Handles the whole lines of data and returns the rest. The order path: one line that is
        an order goes straight to the runtime."""
        *lines, rest = data.split(b"\n")
        if len(lines) == 1 and not rest:
            message = self._decode(lines[0])
            if type(message) is Budget:
                self._order(conn, message)
            elif message is not None:
                self._other(conn, message)
            return rest
        if len(rest) >= MAX_LINE or any(len(line) >= MAX_LINE for line in lines):
            self._send(Error("line", "length", f"more than {MAX_LINE} bytes without a newline"))
            conn.abort()
            raise LineTooLong(max(map(len, [rest, *lines])), MAX_LINE)
        messages = [m for m in map(self._decode, lines) if m is not None]
        orders = [m for m in messages if type(m) is Budget]
        newest = max(orders, key=lambda order: order.epoch, default=None)
        if newest is not None:
            self._order(conn, newest)
        for message in messages:
            if type(message) is Budget:
                if message is not newest:
                    self._superseded(message)
            else:
                self._other(conn, message)
        return rest

    def _decode(self, line: bytes) -> Message | None:
        try:
            return decode(line)
        except LineError as error:
            self._send(Error(error.what, error.where, error.rule))
            return None

    def _order(self, conn: Transport, order: Budget) -> None:
        if order.epoch < self._last_epoch:
            self._superseded(order)
            return
        if conn.hung_up() and self._raises(order):
            return  # a grant of a sidecar that is gone: it may have taken the bytes back since
        self._last_epoch, self._granted = order.epoch, order.bytes
        try:
            self._runtime.apply(order, self._reply)
        except Exception as error:
            _log.exception("lull agent: apply epoch=%d failed; no ack is sent", order.epoch)
            self._send(Error("budget", "apply", f"{type(error).__name__}: {error}"[:500]))
        if order.reason == "floor":
            self._floor.grant(order.floor)
        if self._greeting is not None and self._greeting.waiting:
            self._greeting.budget(order.bytes)

    def _raises(self, order: Budget) -> bool:
        """Whether order is more than this trainer has now. The runtime may have gone below the last order by
        itself: at the end of a lease, or to the min budget until its first budget."""
        return order.bytes > min(self._granted, self._runtime.hello().ceiling)

    def _superseded(self, order: Budget) -> None:
        if order.reason == "floor":
            self._floor.grant(order.floor)
        self._send(Ack(order.epoch, self._held, 0, 0, "superseded"))

    def _reply(self, ack: Ack) -> None:
        self._held = ack.held
        self._send(ack)

    def _other(self, conn: Transport, message: Message) -> None:
        kind = type(message)
        if isinstance(message, Ping):
            self._send(Pong(message.seq))
        elif isinstance(message, Pace):
            self._runtime.pace(message)
        elif isinstance(message, Yield):
            self._runtime.pace(Pace(0.0, message.reason, message.lease_ms))
        elif isinstance(message, Welcome):
            self._on_welcome(conn, message)
        elif isinstance(message, Refused):
            self._floor.refuse()
        elif kind is Drain:
            self._runtime.drain()
        elif isinstance(message, Error):
            self._on_error(message)
        elif kind is not Bye:  # after a bye the end of the connection comes
            self._send(Error(kind.__name__.lower(), "type", "a trainer does not take it"))

    def _on_error(self, error: Error) -> None:
        if (error.what, error.where) == ("hello", "pid"):
            self._uncounted = True
        if (error.what, error.where) != ("hello", "device") or self._greeting is None:
            self._told = True
            self._trouble(
                f"the sidecar refused {error.what} {error.where}: {error.rule}; training goes on with what it has"
            )
            return
        self._refused = error.rule or "unknown device"
        self._greeting.refused(self._refused)
        self._report_at = 0.0  # the runtime looks at it when it reports

    def _on_welcome(self, conn: Transport, welcome: Welcome) -> None:
        if welcome.version != VERSION:
            self._send(Error("welcome", "version", f"got {welcome.version}, want {VERSION}"))
            return
        self._heartbeat_s = max(0.001, welcome.heartbeat_ms / 1e3)
        conn.set_timeout(min(self._heartbeat_s, self._config.report_s))
        self._report_at = self._clock()
        self._lease.start(welcome.lease_ms / 1e3, self._report_at)
        self._said = ""
        self._refused = ""
        self._uncounted = False
        self._welcomed = True
        if self._greeting is not None:
            self._greeting.welcomed(welcome.session, self._report_at)

    def _report(self) -> None:
        self._report_at = self._clock() + self._config.report_s
        report = self._runtime.report()
        if report.loss is not None and not math.isfinite(report.loss):
            report = replace(report, loss=None)  # a diverged job still reports its memory
        try:
            self._send(report)
        except ProtocolError as error:
            self._trouble(str(error))

    def _trouble(self, text: str) -> None:
        """Logs a trouble once until another one or a welcome comes."""
        if text != self._said:
            self._said = text
            _log.warning("lull agent: %s", text)
