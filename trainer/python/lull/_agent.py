"""The trainer's end of the control channel: one thread that drives a Runtime.

The thread connects, says hello, and then does one thing: it reads lines and
applies the newest order at once. Heartbeats, reports, the lease and reconnecting
happen between lines. What PROTOCOL.md asks of a trainer is kept here:

- An order with an epoch older than the last is acked as superseded, never applied.
- Nothing raises the ceiling but a budget on a connection that is still open.
- A connection is read to its end before another is opened.
- The sidecar gone: the last grant for the lease, then the min budget.
- Forked children close their copy of the socket.

Standard library only.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

from lull._config import Config
from lull._contract import HelloState, Runtime
from lull._errors import ChannelError, LullError, ProtocolError
from lull._floor import Answer, FloorQuestion
from lull._greeting import Greeting, say_bytes
from lull._lease import Lease, backoff
from lull._lines import Lines
from lull._protocol import VERSION, Bye, Error, Hello, Request
from lull._transport import Transport, connect

__all__ = ["MISSED_HEARTBEATS", "Agent", "HelloState", "Runtime"]

MISSED_HEARTBEATS: Final = 3
"""Heartbeats without a line after which the sidecar is taken for gone."""

_log = logging.getLogger("lull")


class Agent(Lines):
    """Keeps one connection to the sidecar and drives `runtime` with what comes.

    `clock`, `wait`, `rng` and `open_transport` are what a test replaces: seconds of a monotonic
    clock, a sleep that returns True when the agent closes, a random number from 0 to 1, and the
    way to a connection.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        rng: Callable[[], float] = random.random,
        open_transport: Callable[[Config], Transport] = connect,
    ) -> None:
        super().__init__(config, runtime, clock)
        self._closing = threading.Event()
        self._wait = wait or self._closing.wait
        self._rng = rng
        self._open_transport = open_transport
        self._thread: threading.Thread | None = None
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(me))

    @property
    def connected(self) -> bool:
        """Whether a sidecar that speaks for this trainer's device has said welcome on the connection
        that is open now."""
        return self._welcomed and not self._refused

    @property
    def refused(self) -> str:
        """What the sidecar said when it did not know this trainer's device, until another welcome; or ""."""
        return self._refused

    @property
    def last_epoch(self) -> int:
        """The epoch of the last order that was applied; 0 before the first."""
        return self._last_epoch

    def start(self) -> None:
        """Starts the thread; it connects, and connects again whenever the sidecar is gone.
        With socket "" there is no sidecar to look for, and nothing is started."""
        if self._thread is not None:
            raise LullError("start agent: it runs already; make another one")
        if not self._config.socket:
            return
        self._thread = threading.Thread(target=self._run, name="lull-agent", daemon=True)
        self._thread.start()

    def close(self, reason: str = "done") -> None:
        """Says bye, ends the thread and waits for it. Harmless when repeated."""
        self._send(Bye(reason))  # first: the thread drops the connection once it sees _closing
        self._closing.set()
        self._link.abort()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def request_floor(self, bytes: int, timeout: float) -> Answer:
        """Asks for a floor of `bytes` and waits up to `timeout` seconds for the answer.

        Granted, too, when there is nobody to ask: no sidecar was ever seen, or it does not count this trainer.
        A grant that comes after the time is over reaches the runtime as an order with reason floor.
        Never call it on the agent's thread (from a Runtime method).
        """
        if threading.current_thread() is self._thread:
            raise LullError(
                "request floor: called on the agent's thread, which has to read the answer; call it elsewhere"
            )
        if not self._lease.started or self._refused or self._uncounted:
            return Answer.GRANTED
        return self._floor.ask(bytes, lambda: self._send(Request(bytes)), timeout)

    def report_soon(self) -> None:
        """Sends a report now, from the caller's thread; call it when something changed."""
        if self._welcomed:
            self._report()

    # The thread. ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Ends when close was called."""
        failures = 0
        while not self._closing.is_set():
            welcomed = self._guarded(self._connection)
            self._drop()
            failures = 0 if welcomed else failures + 1
            self._guarded(partial(self._pause, failures))

    def _guarded(self, part: Callable[[], bool]) -> bool:
        """The top of the thread: whatever a part raises is logged and reported, and training and
        the thread go on."""
        try:
            return part()
        except ProtocolError as error:
            self._trouble(str(error))
        except Exception as error:
            _log.exception("lull agent: the connection is dropped and opened again")
            self._send(Error("agent", type(error).__name__, str(error)[:500]))
        return False

    def _connection(self) -> bool:
        """One connection from hello to its end; whether it was welcomed."""
        try:
            conn = self._open_transport(self._config)
        except ChannelError as error:
            self._trouble(str(error))
            return False
        self._link.open(conn)
        self._told = False
        self._hello()
        started = self._clock()
        rest = b""
        was_welcomed = False
        while not self._closing.is_set():
            data = conn.recv()
            if data:
                rest = self._take(conn, rest + data if rest else data)
                # A dead sidecar's last lines renew no lease.
                if self._welcomed and not conn.hung_up() and self._lease.heard(self._clock()):
                    self._trouble(
                        "the sidecar is heard again after the lease ended; the connection is dropped and opened again, "
                        "so that it grants anew"
                    )
                    break
            elif data is not None:
                if not was_welcomed and not self._told and not self._closing.is_set():
                    self._trouble(
                        f"connect {self._config.socket}: it was closed before a welcome, want a sidecar of this "
                        "version; training goes on with what it has, and it is tried again"
                    )
                break
            was_welcomed = was_welcomed or self._welcomed
            now = self._clock()
            self._check_lease(now)
            heard = self._lease.heard_at if self._welcomed else started
            if data is None and now - heard > MISSED_HEARTBEATS * self._heartbeat_s:
                self._trouble("the sidecar is silent; the connection is dropped and opened again")
                break
            if self._greeting is not None:
                self._greeting.look(now)
            if self._welcomed and now >= self._report_at:
                self._report()
        return was_welcomed

    def _hello(self) -> None:
        state = self._runtime.hello()
        self._granted, self._held = state.ceiling, state.held
        c = self._config
        device = c.device or state.device
        self._greeting = Greeting(c.socket, device, state)
        self._send(
            Hello(
                version=VERSION,
                job=c.job or f"pid-{os.getpid()}",
                rank=c.rank,
                world=c.world,
                pid=os.getpid(),
                device=device,
                ceiling=state.ceiling,
                held=state.held,
                last_epoch=self._last_epoch,
                baseline=state.baseline,
                floor=state.floor,
                floor_known=state.floor_known,
                min_budget=state.min_budget,
                suspended=state.suspended,
                memory_model=state.memory_model,
                progress=state.progress,
                token=c.token if c.socket.startswith("tcp://") else "",
            )
        )

    def _drop(self) -> None:
        """Forgets the connection; who waits for a floor is told."""
        self._welcomed = False
        self._link.drop()
        self._floor.lose()

    def _pause(self, failures: int) -> bool:
        """Waits before the next connection, longer each time, while the lease runs on; False when
        the agent closes."""
        c = self._config
        until = self._clock() + backoff(c.backoff_first_s, c.backoff_max_s, failures, self._rng)
        while not self._closing.is_set():
            now = self._clock()
            self._check_lease(now)
            if now >= until:
                return True
            if self._wait(self._lease.cap(until - now, now)):
                break
        return False

    def _check_lease(self, now: float) -> None:
        if not self._lease.ends(now) or self._refused:
            return
        self._runtime.lease_ended()
        _log.warning(
            "lull agent: the lease is over: no line from %s in %g s; training goes on within %s of activation memory "
            "(the last grant was %s) until a sidecar grants more, which is looked for",
            self._config.socket,
            self._lease.seconds,
            say_bytes(self._runtime.hello().ceiling),
            say_bytes(self._granted),
        )


def _forked(ref: weakref.ReferenceType[Agent]) -> None:
    """In a forked child: closes its copy of the socket, which would keep the connection open
    after the trainer's death. The child has no agent thread, and its locks may be held."""
    agent = ref()
    if agent is None:
        return
    agent._floor = FloorQuestion()
    agent._lease = Lease()
    agent._closing = threading.Event()
    agent._closing.set()
    agent._thread = None
    agent._welcomed = False
    agent._link.forked()
