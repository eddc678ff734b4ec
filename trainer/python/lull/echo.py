"""A tiny trainer without torch, for tests of the control channel.

    python -m lull.echo --socket /run/lull/lull.sock --ceiling 64MiB

It answers every order at once, and misbehaves where a flag says so. It prints one
JSON line per event on stdout (`hello`, `order`, `pace`, `drain`, `lease_ended`,
`floor`), so that a test can follow it, and ends when its stdin does, or on SIGTERM.
With --hold its activation bytes are real memory, which the device can see.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lull._agent import Agent, HelloState
from lull._config import Config, parse_bytes
from lull._floor import Answer
from lull._protocol import Ack, Budget, Pace, Report

__all__ = ["EchoRuntime", "main"]


class Memory:
    """Activation bytes as real pages: the first `held` bytes of one mapping are touched."""

    def __init__(self, limit: int) -> None:
        self._map = mmap.mmap(-1, max(limit, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.held = 0

    def resize(self, held: int) -> None:
        page = mmap.PAGESIZE
        held = min(len(self._map), held) // page * page
        if held < self.held:
            self._map.madvise(mmap.MADV_DONTNEED, held, self.held - held)
        for offset in range(self.held, held, page):
            self._map[offset] = 1
        self.held = held


class EchoRuntime:
    """Does what the flags say. Its state is read and written on the agent's thread."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ceiling: int = args.ceiling
        self.memory = Memory(args.hold_limit or args.ceiling) if args.hold else None
        if self.memory is not None:
            self.memory.resize(self.ceiling)
        self.orders = 0
        self._out = threading.Lock()

    def say(self, event: str, **more: object) -> None:
        with self._out:
            print(json.dumps({"event": event, **more}), flush=True)

    @property
    def held(self) -> int:
        return self.memory.held if self.memory is not None else self.ceiling

    def hello(self) -> HelloState:
        self.say("hello", pid=os.getpid(), ceiling=self.ceiling, held=self.held)
        a = self.args
        return HelloState(
            device="cpu",
            floor=a.floor,
            floor_known=not a.floor_unknown,
            ceiling=self.ceiling,
            held=self.held,
            baseline=a.baseline,
            min_budget=a.min_budget,
        )

    def apply(self, order: Budget, reply: Callable[[Ack], None]) -> None:
        a, started = self.args, time.monotonic()
        self.orders += 1
        if a.die_on_order:
            os.kill(os.getpid(), signal.SIGKILL)
        if a.stop_reading:
            self.say("order", epoch=order.epoch, bytes=order.bytes)
            threading.Event().wait()
        before, self.ceiling = self.held, order.bytes
        if self.memory is not None:
            self.memory.resize(order.bytes)
        took = round((time.monotonic() - started) * 1e6)
        ack = Ack(order.epoch, self.held, 0, took, "drop" if self.held < before else "nothing")
        if a.lie_held:
            ack = replace(ack, held=order.bytes + a.lie_held)
        if not a.lost_ack:
            self._answer(ack, reply)
        self.say("order", epoch=order.epoch, bytes=order.bytes, reason=order.reason, within_us=order.within_us)

    def _answer(self, ack: Ack, reply: Callable[[Ack], None]) -> None:
        def answer() -> None:
            for _ in range(2 if self.args.duplicate_acks else 1):
                reply(ack)

        if self.args.late_ack_ms:
            threading.Timer(self.args.late_ack_ms / 1e3, answer).start()
        else:
            answer()

    def pace(self, pace: Pace) -> None:
        self.say("pace", duty=pace.duty, reason=pace.reason, lease_ms=pace.lease_ms)

    def drain(self) -> None:
        self.say("drain")

    def lease_ended(self) -> None:
        self.ceiling = min(self.ceiling, self.args.min_budget)
        if self.memory is not None:
            self.memory.resize(self.ceiling)
        self.say("lease_ended", ceiling=self.ceiling)

    def report(self) -> Report:
        return Report({"activation": self.held}, self.orders, self.orders, 1, 0.0, 0.0)


def _parser() -> argparse.ArgumentParser:
    def size(text: str) -> int:
        return parse_bytes("size", text)

    p = argparse.ArgumentParser(prog="python -m lull.echo", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--socket", help="Unix socket or tcp://host:port (LULL_SOCKET)")
    p.add_argument("--job", help="the job's name")
    p.add_argument("--rank", type=int)
    p.add_argument("--world", type=int)
    p.add_argument("--device", help="the device's name in lull.yaml (LULL_DEVICE); default cpu")
    p.add_argument("--floor", type=size, default=0)
    p.add_argument("--floor-unknown", action="store_true", help="say that the floor is not measured yet")
    p.add_argument("--ceiling", type=size, default=0, help="the ceiling at the start")
    p.add_argument("--min-budget", type=size, default=0)
    p.add_argument("--baseline", type=size, default=0)
    p.add_argument("--hold", action="store_true", help="hold the ceiling as real memory")
    p.add_argument("--hold-limit", type=size, default=0, help="the most that --hold maps; default the first ceiling")
    p.add_argument("--ask-floor", type=size, default=0, help="ask for this floor after the first welcome")
    p.add_argument("--late-ack-ms", type=float, default=0.0, help="ack after this time")
    p.add_argument("--lost-ack", action="store_true", help="never ack")
    p.add_argument("--lie-held", type=size, default=0, help="ack with held this much above the order")
    p.add_argument("--duplicate-acks", action="store_true", help="ack twice")
    p.add_argument("--die-on-order", action="store_true", help="SIGKILL itself when an order comes")
    p.add_argument("--stop-reading", action="store_true", help="read nothing after the first order")
    p.add_argument("--leak-socket", action="store_true", help="start a child that keeps the socket open")
    return p


def _leak(agent: Agent) -> subprocess.Popen[bytes]:
    """What a careless library does: a child that inherits the connection."""
    fd = agent._link.fileno()
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[fd])


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    runtime = EchoRuntime(args)
    config = Config.from_env(socket=args.socket, job=args.job, rank=args.rank, world=args.world, device=args.device)
    agent = Agent(config, runtime)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    agent.start()
    child: subprocess.Popen[bytes] | None = None
    try:
        while (args.leak_socket or args.ask_floor) and not agent.connected:
            time.sleep(0.005)
        if args.leak_socket:
            child = _leak(agent)
            runtime.say("leaked", pid=child.pid)
        if args.ask_floor:
            answer = agent.request_floor(args.ask_floor, 5.0)
            runtime.say("floor", asked=args.ask_floor, granted=answer is Answer.GRANTED)
        sys.stdin.buffer.read()
    finally:
        agent.close("stdin ended")
        if child is not None:
            child.kill()
            child.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
