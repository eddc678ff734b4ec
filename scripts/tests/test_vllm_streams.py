"""benchmarks/vllm: the load's streams end, whatever the server answers; the runs themselves need vLLM."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

STREAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "vllm" / "streams.py"


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers by the class' status and body."""

    status, body = 200, b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    monkeypatch.setattr(Answer, "status", request.param[0])
    monkeypatch.setattr(Answer, "body", request.param[1])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made.server_address[1]
        made.shutdown()
        thread.join()


def run(port: int) -> subprocess.CompletedProcess[str]:
    """Two streams, of one answer each: standard input has ended already."""
    command = [sys.executable, str(STREAMS), str(port), "2"]
    return subprocess.run(command, input="", capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("server", [(200, b": ping\n\ndata: {}\n\ndata: [DONE]\n\n")], indirect=True)
def test_streams_end_with_standard_input(server: int) -> None:
    done = run(server)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ((500, b'{"error":"no"}'), 'streams: status 500, b\'{"error":"no"}\', want 200'),
        ((200, b'{"choices":[]}'), "streams: the answer ended without an event"),
    ],
    indirect=["server"],
)
def test_streams_that_fail_end_with_a_reason_and_a_status(server: int, said: str) -> None:
    done = run(server)
    assert done.returncode == 1
    assert said in done.stderr
