"""The agent against a sidecar made by hand."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest
from handmade import FakeClock, Line, RecordingRuntime, Sidecar

from lull._agent import MISSED_HEARTBEATS, Agent
from lull._config import Config
from lull._errors import LullError
from lull._floor import Answer
from lull._protocol import (
    Ack,
    Budget,
    Bye,
    Drain,
    Error,
    Hello,
    Message,
    Pace,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
    Yield,
    encode,
)

pytestmark = pytest.mark.cpu

Start = Callable[..., Agent]


def _epoch(session: int, n: int) -> int:
    return session << 32 | n


def _stops_growing(runtime: RecordingRuntime, line: Line) -> list[object]:
    line.synced()
    return list(runtime.calls)


def test_hello_says_who_and_what_is_held(start: Start, sidecar: Sidecar) -> None:
    start(Config(job="gpt", rank=1, world=2))
    _, hello = sidecar.welcome()
    assert hello == Hello(1, "gpt", 1, 2, os.getpid(), "cpu", 1000, 5, 0, floor=7, floor_known=True, min_budget=10)


def test_hello_names_the_device_as_the_config_does(start: Start, sidecar: Sidecar) -> None:
    start(Config(job="gpt", device="host0"))
    _, hello = sidecar.welcome()
    assert hello.device == "host0"


def test_order_is_applied_and_acked(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 300, 12_000, "arrival"))
    assert line.read() == Ack(_epoch(7, 1), 300, 0, 1, "drop")
    assert runtime.calls == [("apply", _epoch(7, 1), 300)]


def test_ack_may_come_later_from_another_thread(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    runtime.answer = False
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 300))
    line.synced()
    ack = Ack(_epoch(7, 1), 200, 5, 6, "finish")
    thread = threading.Thread(target=runtime.replies[0], args=(ack,))
    thread.start()
    thread.join()
    assert line.read() == ack


def test_only_the_newest_order_in_the_buffer_is_applied(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    start()
    line, _ = sidecar.welcome()
    orders: list[Message] = [Budget(_epoch(7, n), 100 * n) for n in (1, 2, 5, 3)]
    line.send(Ping(1), *orders, Ping(2))
    assert [line.read() for _ in range(6)] == [
        Ack(_epoch(7, 5), 500, 0, 1, "drop"),  # the newest first
        Pong(1),
        Ack(_epoch(7, 1), 500, 0, 0, "superseded"),
        Ack(_epoch(7, 2), 500, 0, 0, "superseded"),
        Ack(_epoch(7, 3), 500, 0, 0, "superseded"),
        Pong(2),
    ]
    assert runtime.calls == [("apply", _epoch(7, 5), 500)]


def test_older_epoch_is_acked_as_superseded_and_not_applied(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    agent = start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(8, 1), 300))
    line.read()
    line.send(Budget(_epoch(7, 9), 900))
    assert line.read() == Ack(_epoch(7, 9), 300, 0, 0, "superseded")
    assert runtime.calls == [("apply", _epoch(8, 1), 300)]
    assert agent.last_epoch == _epoch(8, 1)


def test_same_epoch_again_is_acked_again(start: Start, sidecar: Sidecar) -> None:
    start()
    line, _ = sidecar.welcome()
    for _ in range(2):
        line.send(Budget(_epoch(7, 1), 300))
        assert line.read() == Ack(_epoch(7, 1), 300, 0, 1, "drop")


def test_line_in_pieces_is_one_line(start: Start, sidecar: Sidecar) -> None:
    start()
    line, _ = sidecar.welcome()
    for byte in encode(Budget(_epoch(7, 1), 300)):
        line.write(bytes([byte]))
    assert line.read() == Ack(_epoch(7, 1), 300, 0, 1, "drop")


def test_bad_line_is_answered_and_training_goes_on(start: Start, sidecar: Sidecar) -> None:
    start()
    line, _ = sidecar.welcome()
    line.write(b"nonsense\n")
    assert line.read() == Error("line", "json", "not valid, want one JSON object in UTF-8")
    line.write(b'{"type":"budget","epoch":1}\n')
    assert line.read() == Error("budget", "bytes", "missing")
    line.send(Hello(1, "x", 0, 1, 1, "cpu", 0, 0, 0))
    assert line.read() == Error("hello", "type", "a trainer does not take it")
    line.send(Budget(_epoch(7, 1), 300))
    assert isinstance(line.read(), Ack)


def test_error_line_is_logged_and_not_answered(
    start: Start, sidecar: Sidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lull")
    start()
    line, _ = sidecar.welcome()
    line.send(Error("report", "bytes", "missing"), Ping(3))
    assert line.read() == Pong(3)
    assert "the sidecar refused report bytes: missing; training goes on with what it has" in caplog.text


def test_garbage_beyond_the_limit_ends_the_connection_and_it_connects_again(start: Start, sidecar: Sidecar) -> None:
    start()
    line, _ = sidecar.welcome()
    line.write(b"x" * 65_536)
    assert line.read() == Error("line", "length", "more than 65536 bytes without a newline")
    line.ended()
    sidecar.welcome()


def test_pace_yield_and_drain_reach_the_runtime(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    start()
    line, _ = sidecar.welcome()
    line.send(Pace(0.5, "tbt", 2000), Yield(50, "slack"), Drain("shutdown"), Bye("later"))
    assert _stops_growing(runtime, line) == [Pace(0.5, "tbt", 2000), Pace(0.0, "slack", 50), "drain"]


def test_apply_that_raises_is_reported_and_the_thread_lives(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    runtime.fail = ValueError("no slot table")
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 300))
    assert line.read() == Error("budget", "apply", "ValueError: no slot table")
    runtime.fail = None
    line.send(Budget(_epoch(7, 2), 300))
    assert isinstance(line.read(), Ack)


def test_reports_come_by_themselves_and_when_asked(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    runtime.loss = float("nan")  # a diverged job still reports its memory
    agent = start()
    agent.report_soon()  # without a welcome nothing is sent
    line, _ = sidecar.welcome()
    assert line.report().bytes == {"activation": 1000}
    line.synced()
    runtime.ceiling = 77
    agent.report_soon()
    report = line.report()
    assert report.bytes == {"activation": 77}
    assert report.loss is None


def test_other_version_is_refused(start: Start, sidecar: Sidecar) -> None:
    agent = start()
    line = sidecar.accept()
    line.read()
    line.send(Welcome(2, 7, 1000, 10_000))
    assert line.read() == Error("welcome", "version", "got 2, want 1")
    assert not agent.connected


def test_sidecar_restart_keeps_training(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 300))
    line.read()
    line.close()
    line, hello = sidecar.welcome()
    assert (hello.ceiling, hello.last_epoch) == (300, _epoch(7, 1))
    assert runtime.calls == [("apply", _epoch(7, 1), 300)]


def test_old_connection_is_read_to_its_end_and_a_raise_in_it_is_dropped(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    hold = threading.Event()
    applied = runtime.apply

    def slow(order: Budget, reply: Callable[[Ack], None]) -> None:
        applied(order, reply)
        hold.wait(60)

    runtime.apply = slow  # type: ignore[method-assign]
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 500))
    line.read()
    # While the agent is busy: a shrink, then a raise, then the sidecar is gone.
    line.send(Budget(_epoch(7, 2), 400))
    line.send(Budget(_epoch(7, 3), 900))
    line.close()
    hold.set()
    _, hello = sidecar.welcome()
    assert (hello.ceiling, hello.last_epoch) == (500, _epoch(7, 1))
    assert ("apply", _epoch(7, 3), 900) not in runtime.calls


def test_shrink_in_a_closed_connection_is_applied(start: Start, sidecar: Sidecar, runtime: RecordingRuntime) -> None:
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 200))
    line.sock.close()
    line.close()
    _, hello = sidecar.welcome()
    assert (hello.ceiling, hello.last_epoch) == (200, _epoch(7, 1))


def test_raise_above_what_the_runtime_lowered_itself_to_is_dropped_in_a_closed_connection(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    start()
    line, hello = sidecar.welcome()
    assert hello.ceiling == 1000
    line.synced()
    runtime.ceiling = 100  # to the min budget, until its first budget comes
    gone = threading.Event()

    def until_gone(pace: Pace) -> None:
        """Keeps the agent from its next line until the connection is closed."""
        gone.wait(60)

    runtime.pace = until_gone  # type: ignore[method-assign]
    line.send(Pace(1.0))
    line.send(Budget(_epoch(7, 1), 400))
    line.sock.close()
    line.close()
    gone.set()
    _, hello = sidecar.welcome()
    assert (hello.ceiling, hello.last_epoch) == (100, 0)
    assert runtime.calls == []


def test_silent_sidecar_is_left_and_looked_for_again(start: Start, sidecar: Sidecar) -> None:
    start()
    started = time.monotonic()
    line, _ = sidecar.welcome(heartbeat_ms=10)
    line.ended()
    assert time.monotonic() - started >= MISSED_HEARTBEATS * 0.010
    sidecar.welcome()


def test_lease_ends_at_the_min_budget_and_only_once(
    start: Start,
    sidecar: Sidecar,
    runtime: RecordingRuntime,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits: list[float] = []
    over = threading.Event()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.now += seconds
        if clock.now > 100 + 60:
            over.wait(60)
            return True
        return False

    agent = start(Config(job="t", report_s=3600.0), clock=clock, wait=wait, rng=lambda: 1.0)
    line, _ = sidecar.welcome(lease_ms=10_000)
    line.synced()
    sidecar.refuse = True
    line.close()
    runtime.wait_for("lease_ended")
    over.set()
    agent.close()
    assert runtime.calls.count("lease_ended") == 1
    assert runtime.ceiling == 10
    said = [record.getMessage() for record in caplog.records if "lease" in record.getMessage()]
    assert said == [
        "lull agent: the lease is over: no line from /run/lull/lull.sock in 10 s; training goes on within 10 B of "
        "activation memory (the last grant was 1000 B) until a sidecar grants more, which is looked for"
    ]
    # Doubled up to 2 s, and the last pause before the end of the lease is cut to it.
    assert [round(w, 3) for w in waits[:7]] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert sum(waits[:10]) >= 10.0 - 1e-9
    assert any(abs(sum(waits[:n]) - 10.0) < 1e-6 for n in range(1, 12))


def test_a_sidecar_that_is_heard_again_after_the_lease_grants_anew_on_a_new_connection(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    """On the old one nothing would raise what the end of the lease took, until the next order."""
    start(Config(job="t", report_s=0.005))
    line, _ = sidecar.welcome(heartbeat_ms=3_600_000, lease_ms=20)
    runtime.wait_for("lease_ended")
    line.send(Ping(1))
    line.ended()
    line, hello = sidecar.welcome(lease_ms=3_600_000)
    assert hello.ceiling == 10, "what the lease left"
    line.send(Budget(1 << 32, 700))
    runtime.wait_for(("apply", 1 << 32, 700))


def test_never_seen_sidecar_leaves_the_users_own_budget(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime, clock: FakeClock
) -> None:
    done = threading.Event()

    def wait(seconds: float) -> bool:
        clock.now += seconds
        if clock.now > 10_000:
            done.set()
        return done.is_set()

    sidecar.refuse = True
    agent = start(Config(job="t", report_s=3600.0), clock=clock, wait=wait)
    assert done.wait(60)
    agent.close()
    assert runtime.calls == []
    assert agent.request_floor(5, 0.0) is Answer.GRANTED  # nobody to ask


def test_floor_is_granted_refused_late_or_the_sidecar_is_gone(start: Start, sidecar: Sidecar) -> None:
    agent = start()
    line, _ = sidecar.welcome()
    line.synced()
    answers: list[Answer] = []

    def ask(timeout: float) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(agent.request_floor(50, timeout)))
        thread.start()
        assert line.read() == Request(50)
        return thread

    thread = ask(60)
    line.send(Budget(_epoch(7, 1), 300, 0, "arrival"))  # no answer to the question
    line.read()
    line.send(Budget(_epoch(7, 2), 250, 0, "floor", 49))  # the late answer to an earlier, smaller question
    line.read()
    assert thread.is_alive()
    line.send(Budget(_epoch(7, 3), 250, 0, "floor", 50))
    thread.join()
    line.read()
    thread = ask(60)
    line.send(Refused(7, "capacity"))
    thread.join()
    thread = ask(0.01)
    thread.join()
    thread = ask(60)
    sidecar.refuse = True  # else it is connected again soon
    line.close()
    thread.join()
    assert agent.request_floor(50, 20) is Answer.GONE, "at once: there is no connection"
    assert answers == [Answer.GRANTED, Answer.REFUSED, Answer.LATE, Answer.GONE]


def test_floor_asked_on_the_agents_thread_is_an_error(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    caught: list[BaseException] = []

    def drain() -> None:
        try:
            agent.request_floor(1, 1)
        except LullError as error:
            caught.append(error)

    runtime.drain = drain  # type: ignore[method-assign]
    agent = start()
    line, _ = sidecar.welcome()
    line.send(Drain())
    line.synced()
    assert str(caught[0]) == (
        "request floor: called on the agent's thread, which has to read the answer; call it elsewhere"
    )


def test_close_says_bye_and_may_be_repeated(start: Start, sidecar: Sidecar) -> None:
    agent = start()
    line, _ = sidecar.welcome()
    line.synced()
    agent.close("finished")
    assert line.read() == Bye("finished")
    line.ended()
    agent.close()
    with pytest.raises(LullError, match=r"^start agent: it runs already; make another one$"):
        agent.start()


def test_sidecar_that_does_not_read_never_blocks_a_reply(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime
) -> None:
    runtime.answer = False
    start()
    line, _ = sidecar.welcome()
    line.send(Budget(_epoch(7, 1), 300))
    line.synced()
    for n in range(20_000):  # far more than a socket's buffer
        runtime.replies[0](Ack(n, 1, 0, 0, "nothing"))
    line.ended()  # the connection was given up, not waited for
    line.close()
    sidecar.welcome()


def test_forked_child_closes_its_copy_of_the_socket(start: Start, sidecar: Sidecar) -> None:
    agent = start()
    line, _ = sidecar.welcome()
    line.synced()
    ready, release = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: what DataLoader does
        child = os.fork()
    if child == 0:
        os.write(ready[1], b"1" if not agent.connected and not agent._send(Bye()) else b"0")
        os.read(release[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"1"
        line.send(Ping(1))
        assert line.read() == Pong(1)  # the parent's connection lives
        agent.close()
        line.ended()  # although the child is alive
    finally:
        os.write(release[1], b"x")
        os.waitpid(child, 0)
        for fd in (*ready, *release):
            os.close(fd)


def test_without_a_socket_no_sidecar_is_looked_for(start: Start, sidecar: Sidecar) -> None:
    agent = start(Config(socket="", job="t"))
    agent.close()
    assert sidecar.attempts == 0
    assert agent.request_floor(5, 0.0) is Answer.GRANTED


def test_runtime_that_raises_costs_a_connection_never_the_thread(
    start: Start, sidecar: Sidecar, runtime: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("cannot checkpoint")

    runtime.drain = broken  # type: ignore[method-assign]
    runtime.lease_ended = broken  # type: ignore[method-assign]
    start()
    line, _ = sidecar.welcome(lease_ms=1)  # so that the lease ends while it looks for a sidecar
    line.send(Drain())
    assert line.read() == Error("agent", "RuntimeError", "cannot checkpoint")
    line.ended()
    sidecar.welcome()
    assert "the connection is dropped and opened again" in caplog.text


def test_connection_that_ends_before_a_welcome_is_told_unless_the_sidecar_said_why(
    start: Start, sidecar: Sidecar, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else's socket, or a sidecar that takes no such trainer."""
    caplog.set_level(logging.WARNING, "lull")
    agent = start()
    for why in (Error("connect", "uid", "1000 is not allowed"), None):
        for _ in range(2):
            line = sidecar.accept()
            line.read()
            if why is not None:
                line.send(why)
            line.close()
    line = sidecar.accept()
    line.read()
    agent.close()
    assert [record.getMessage() for record in caplog.records] == [
        "lull agent: the sidecar refused connect uid: 1000 is not allowed; training goes on with what it has",
        "lull agent: connect /run/lull/lull.sock: it was closed before a welcome, want a sidecar of this version; "
        "training goes on with what it has, and it is tried again",
    ]
