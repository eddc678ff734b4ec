"""Streams that run until standard input ends, as a child: python streams.py PORT COUNT.

Nothing here needs more than the standard library, so that the child starts at once.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def first_event(port: int, prompt: Sequence[int], tokens: int) -> float:
    """Milliseconds from sending a request to its first event; the answer is read to its end.

    RuntimeError where there is none.
    """
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}, {answer.read(300)!r}, want 200")
        while not (line := answer.readline()).startswith(b"data:"):
            if not line:
                raise RuntimeError("the answer ended without an event, want one")
        first = (time.perf_counter() - began) * 1e3
        answer.read()
        return first
    finally:
        connection.close()


def stream(port: int, which: int, ended: threading.Event) -> None:
    """One answer of 200 tokens after another, at least one, each to a prompt of its own."""
    number = 0
    while number == 0 or not ended.is_set():
        number += 1
        first_event(port, [2 + (which * 31 + number * 7 + j) % 250 for j in range(100)], 200)


def main() -> None:
    """Streams until standard input ends; the exit status is 1 when one could not go on."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    ended = threading.Event()
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(stream, port, i, ended) for i in range(count)]
        sys.stdin.read()
        ended.set()
    for one in running:
        if failed := one.exception():
            raise SystemExit(f"streams: {failed}")


if __name__ == "__main__":
    main()
