"""An engine for the Go tests: reads one command a line from stdin, answers one line each.

use N      take N blocks          hold        keep orders to the workers back
free       free all blocks        go          answer the orders kept back
step       one scheduling step    short       a step in which an allocation fell short
break      meet an error          spin N      write the page N times as fast as can be
exit       end cleanly            (end of file: end without a word, like a crash)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fake_engine import FakeEngine  # noqa: E402
from fake_vllm import Request, step_output  # noqa: E402


def main() -> None:
    mode = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    engine = FakeEngine(Path(sys.argv[1]), mode=mode)
    engine.start()
    used: list[Any] = []
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "exit":
            engine.close()
            print("ok", flush=True)
            return
        print(obey(engine, used, command, arguments), flush=True)
    os._exit(1)


def obey(engine: FakeEngine, used: list[Any], command: str, arguments: list[str]) -> str:
    controller = engine.controller
    if command == "use":
        used.extend(engine.loop.call(lambda: engine.allocate(int(arguments[0]))))
        engine.loop.call(controller.tick)
    elif command == "free":
        engine.loop.call(lambda: engine.pool.free_blocks(used))
        used.clear()
        engine.loop.call(controller.tick)
    elif command in ("step", "short"):
        engine.loop.call(lambda: step(engine, command == "short"))
    elif command == "hold":
        engine.held_orders = []
    elif command == "go":
        kept, engine.held_orders = engine.held_orders or [], None
        for seq, runs in kept:
            engine.answer(seq, runs)
    elif command == "break":
        engine.bound.tick = None  # type: ignore[assignment, method-assign]
        engine.loop.call(controller.tick)
    elif command == "spin":
        engine.loop.call(lambda: [controller.tick() for _ in range(int(arguments[0]))])
    else:
        return f"unknown command {command}"
    return "ok"


def step(engine: FakeEngine, short: bool) -> None:
    engine.controller.before_schedule()
    if short:
        engine.scheduler.waiting.append(Request("w", 64, 16))
        engine.controller.fell_short()
    engine.controller.after_schedule(step_output(16))
    engine.controller.after_update(step_output(16))


if __name__ == "__main__":
    main()
