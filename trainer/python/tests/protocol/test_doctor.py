"""The doctor says what it saw and what to fix; the checks of this file need no torch."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from lull import doctor
from lull._config import Config
from lull._protocol import Error, Hello, Message, Pong, Welcome, decode, encode
from lull._transport import Transport
from lull.doctor import Finding

pytestmark = pytest.mark.cpu

PROBE: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "kind": "cpu",
    "device": "cpu",
    "device_bytes": 8 << 30,
    "threads": 2,
    "pool": "the native arena",
    "taken": 64 << 20,
    "returned": 64 << 20,
    "seconds": 0.004,
}


def text(f: Finding) -> str:
    return f"{f.how} {f.what}: {f.seen} | {f.fix}"


def test_python_and_torch_that_are_too_old_are_named() -> None:
    assert text(doctor.check_python((3, 9, 1))) == "bad python: 3.9.1 | use Python 3.10 or later"
    assert doctor.check_python((3, 13, 0)).how == "ok"
    assert text(doctor.check_torch({"torch": "2.3.1+cu121"})) == "bad torch: 2.3.1+cu121 | pip install 'torch>=2.4'"
    assert text(doctor.check_torch(PROBE)) == "ok torch: 2.13.0+cpu | "
    missing = doctor.check_torch({"error": "ModuleNotFoundError: No module named 'torch'"})
    assert text(missing).startswith("bad torch: not importable: ModuleNotFoundError")
    assert doctor.check_device({}).how == "bad"
    assert doctor.check_device(PROBE).seen == "cpu, 8.0 GiB, 2 threads"


def test_allocator_says_what_is_there_and_what_is_missing() -> None:
    assert "install a C compiler" in doctor.check_allocator(None, {}).fix
    assert "is in this process" in doctor.check_allocator("/a.so", {"LD_PRELOAD": "/b.so:/a.so"}).seen
    assert "lull.run script.py" in doctor.check_allocator("/a.so", {}).seen


def test_memory_that_came_back_is_a_measured_figure() -> None:
    found = doctor.check_memory(PROBE, "with lull.run")
    assert text(found) == (
        "ok memory, with lull.run: measured: 64.0 MiB of 64.0 MiB came back in 4.00 ms (15.6 GiB/s) "
        "from the native arena | "
    )


def test_memory_that_stayed_is_bad() -> None:
    found = doctor.check_memory({**PROBE, "returned": 0, "pool": "malloc"}, "without lull.run")
    assert found.how == "bad"
    assert "0 B of 64.0 MiB came back" in found.seen
    assert "python -m lull.run" in found.fix
    assert doctor.check_memory({"error": "boom"}, "x").seen == "not measured: boom"


@pytest.mark.parametrize(
    ("setting", "how"), [("always [madvise] never", "ok"), ("[always] madvise never", "ok"), ("a [never]", "note")]
)
def test_huge_pages(tmp_path: Path, setting: str, how: str) -> None:
    path = tmp_path / "enabled"
    path.write_text(setting)
    found = doctor.check_huge_pages(path)
    assert found.how == how
    assert ("echo madvise" in found.fix) == (how == "note")
    assert doctor.check_huge_pages(tmp_path / "none").how == "note"


def test_priority() -> None:
    assert doctor.check_priority(True, 0).how == "ok"
    assert doctor.check_priority(False, 30).how == "ok"
    assert doctor.check_priority(False, -1).how == "ok"
    assert "ulimit -e 30" in doctor.check_priority(False, 0).fix


def test_setting_that_is_wrong_names_its_key() -> None:
    found, config = doctor.check_settings({"LULL_BUDGET": "64MB"})
    assert config is None
    assert found.how == "bad"
    assert "config LULL_BUDGET: got '64MB'" in found.seen
    assert found.fix == "correct or unset LULL_BUDGET"
    found, config = doctor.check_settings({"LULL_JOB": "gpt", "LULL_BUDGET": "1GiB", "LULL_MIN_BUDGET": "8MiB"})
    assert config is not None
    assert found.seen == "job gpt, device as torch calls it, own budget 1.0 GiB, min budget 8.0 MiB"
    assert "half of the device's memory, min budget what one sample takes" in doctor.check_settings({})[0].seen


@contextmanager
def listener(path: Path, answer: bytes | None, asked: list[bytes]) -> Iterator[None]:
    """One connection: reads a line if it will answer one, then closes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        conn, _ = server.accept()
        with conn:
            if answer is not None:
                asked.append(conn.recv(4096))
                conn.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        server.close()


HELLO_FIRST = encode(Error("pong", "type", "hello comes first; of the job lull-doctor it makes no trainer"))
OLDER = encode(Error("pong", "type", "hello comes first"))
OTHER_USER = encode(Error("connect", "uid", "got 1000, want one of [0]"))


@pytest.mark.parametrize(
    ("answer", "how", "seen", "fix"),
    [
        (HELLO_FIRST, "ok", "a sidecar answers on ", ""),
        (OLDER, "ok", "takes this user; it is older than this doctor, so it was not asked about the device", ""),
        (OTHER_USER, "bad", "refuses this user: uid got 1000, want one of [0]", "trainers.allow_uids"),
        (b"HTTP/1.1 400 Bad Request\r\n", "bad", "is not a sidecar's: it said b'HTTP/1.1", "set LULL_SOCKET"),
        (None, "bad", "takes a connection but closes at once", "restart `lull serve`"),
    ],
)
def test_socket_is_asked_without_saying_hello(
    tmp_path: Path, answer: bytes | None, how: str, seen: str, fix: str
) -> None:
    path, asked = tmp_path / "lull.sock", []
    with listener(path, answer, asked):
        found = doctor.check_socket(Config(socket=str(path)))
    assert found.how == how, found
    assert seen in found.seen
    assert fix in found.fix
    assert [decode(line.strip()) for line in asked] == [Pong()] * len(asked)


class Sidecar:
    """A connection to a sidecar: answers a pong as every one does, and a hello with these lines, cut anywhere."""

    def __init__(self, answer: bytes) -> None:
        self._answers = {Pong: [HELLO_FIRST], Hello: [answer[:30], answer[30:]]}
        self._pending: list[bytes] = []
        self.heard: list[Message] = []

    def set_timeout(self, seconds: float) -> None:
        pass

    def send(self, line: bytes) -> bool:
        self.heard.append(decode(line.strip()))
        self._pending += self._answers[type(self.heard[-1])]
        return True

    def recv(self) -> bytes | None:
        return self._pending.pop(0) if self._pending else b""

    def close(self) -> None:
        pass


WELCOME = encode(Welcome(1, 7, 1000, 10000))


@pytest.mark.parametrize(
    ("answer", "how", "seen", "fix"),
    [
        (
            Error("hello", "doctor", "the device is host0 of lull.yaml"),
            "ok",
            "takes this user; the device is host0",
            "",
        ),
        (Error("hello", "device", "got 'host7', want host0"), "bad", "device: got 'host7', want host0", "LULL_DEVICE"),
        (Error("hello", "pid", "cannot read this process"), "bad", "tcp://h:1: cannot read this", "PID namespace"),
        (Error("hello", "token", "wrong"), "bad", "refuses hello: token wrong", "docs/TRAINING.md"),
        (Error("session", "job", "another process has it"), "ok", "it did not say more", ""),
    ],
)
def test_device_is_asked_for_by_a_hello_of_the_doctors_own(answer: Error, how: str, seen: str, fix: str) -> None:
    line = Sidecar(WELCOME + encode(answer))
    config = Config(socket="tcp://h:1", device="host7", token="t")
    found = doctor.check_socket(config, lambda config: cast("Transport", line))
    assert (found.how, seen in found.seen, fix in found.fix) == (how, True, True), found
    pong, hello = line.heard
    assert isinstance(pong, Pong)
    assert isinstance(hello, Hello)
    assert (hello.job, hello.device, hello.token) == ("lull-doctor", "host7", "t")


def test_device_without_a_setting_is_torchs_name_for_it(tmp_path: Path) -> None:
    line = Sidecar(WELCOME + b"not json\n")
    found = doctor.check_socket(Config(socket="tcp://h:1"), lambda config: cast("Transport", line), "cuda:0")
    assert (found.how, "it did not say more" in found.seen) == ("ok", True)
    assert isinstance(line.heard[1], Hello)
    assert line.heard[1].device == "cuda:0"


def test_socket_that_is_missing_stale_or_no_socket(tmp_path: Path) -> None:
    missing = doctor.check_socket(Config(socket=str(tmp_path / "none")))
    assert (missing.how, "start `lull serve`" in missing.fix) == ("note", True)
    assert "trains alone until a sidecar comes" in missing.seen
    plain = tmp_path / "plain"
    plain.write_text("")
    assert doctor.check_socket(Config(socket=str(plain))).seen == f"{plain} is no socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "stale"))
    stale.close()
    found = doctor.check_socket(Config(socket=str(tmp_path / "stale")))
    assert found.how == "bad"
    assert "Connection refused" in found.seen
    assert "start `lull serve`" in found.fix
    assert doctor.check_socket(Config(socket="")).how == "note"
    beyond = doctor.check_socket(Config(socket=str(plain / "x")))
    assert (beyond.how, "Not a directory" in beyond.seen) == ("bad", True)


def test_silent_socket_is_bad() -> None:
    class Silent:
        def __init__(self) -> None:
            self.closed = False

        def set_timeout(self, seconds: float) -> None:
            pass

        def send(self, line: bytes) -> bool:
            return True

        def recv(self) -> bytes | None:
            return None

        def close(self) -> None:
            self.closed = True

    line: Any = Silent()
    found = doctor.check_socket(Config(socket="tcp://h:1"), lambda config: line)
    assert "takes a connection but does not answer within 2 s" in found.seen
    assert line.closed


def examine(env: Mapping[str, str], probe: dict[str, Any]) -> dict[str, str]:
    return {f.what: f.how for f in doctor.examine({"LULL_SOCKET": "", **env}, lambda env: probe)}


def test_everything_is_looked_at_and_measured_both_ways(tmp_path: Path) -> None:
    library = tmp_path / "arena.so"
    library.touch()
    found = examine({"LULL_ARENA": str(library)}, PROBE)
    assert list(found) == [
        "python",
        "torch",
        "device",
        "allocator",
        "huge pages",
        "priority",
        "memory, with lull.run",
        "memory, without lull.run",
        "settings",
        "socket",
    ]
    inside = examine({"LULL_ARENA": str(library), "LD_PRELOAD": str(library)}, PROBE)
    assert "memory, without lull.run" not in inside
    cuda = examine({"LULL_ARENA": str(library)}, {**PROBE, "kind": "cuda"})
    assert "allocator" not in cuda
    assert "socket" not in examine({"LULL_ARENA": str(library), "LULL_RANK": "x"}, PROBE)


def test_child_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    found = doctor.probe({"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path)})
    assert found["error"]
    assert "taken" not in found


def test_console_script_wants_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["lull-trainer"])
    assert doctor.script() == 2
    assert capsys.readouterr().err == "usage: lull-trainer doctor [--json]\n"
    called: list[Any] = []
    monkeypatch.setattr(doctor, "main", lambda argv: called.append(argv) or 0)
    monkeypatch.setattr(sys, "argv", ["lull-trainer", "doctor", "--json"])
    assert doctor.script() == 0
    assert called == [["--json"]]
