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


def first_event(port: int, prompt: Sequence[int], tokens: int) -> float:
    """Milliseconds from sending a request to its first event; the answer is read to its end."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while not answer.readline().startswith(b"data:"):
            pass
        first = (time.perf_counter() - began) * 1e3
        answer.read()
        return first
    finally:
        connection.close()


def stream(port: int, which: int, ended: threading.Event) -> None:
    """One answer of 200 tokens after another, each to a prompt of its own."""
    number = 0
    while not ended.is_set():
        number += 1
        first_event(port, [2 + (which * 31 + number * 7 + j) % 250 for j in range(100)], 200)


def main() -> None:
    """Streams until standard input ends."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    ended = threading.Event()
    threads = [threading.Thread(target=stream, args=(port, i, ended)) for i in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
