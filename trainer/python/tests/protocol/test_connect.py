"""Every way in which a connection cannot be had says what, where, what is wanted and what happens next."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lull._config import Config
from lull._errors import ChannelError
from lull._transport import connect

pytestmark = pytest.mark.cpu

NEXT = "; training goes on with what it has, and it is tried again"
WANT = ", want a running sidecar's (LULL_SOCKET)"


def refusal(config: Config) -> str:
    with pytest.raises(ChannelError) as caught:
        connect(config)
    return str(caught.value)


def test_missing_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    want = f"connect {path}: no such socket ([Errno 2] No such file or directory){WANT}{NEXT}"
    assert refusal(Config(socket=path)) == want


def test_stale_socket_and_plain_file(tmp_path: Path) -> None:
    stale, plain = tmp_path / "stale", tmp_path / "plain"
    plain.write_text("")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(stale))
    for path in (stale, plain):
        want = f"connect {path}: nobody listens there ([Errno 111] Connection refused){WANT}{NEXT}"
        assert refusal(Config(socket=str(path))) == want


def test_path_that_is_too_long(tmp_path: Path) -> None:
    path = "/" + "x" * 200
    assert refusal(Config(socket=path)) == f"connect {path}: AF_UNIX path too long{NEXT}"


def test_user_that_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert refusal(Config(socket="/s")) == (
        "connect /s: this user may not ([Errno 13] Permission denied), want it in trainers.allow_uids of lull.yaml"
        + NEXT
    )


def test_certificate_file_that_is_missing_is_named() -> None:
    config = Config(socket="tcp://127.0.0.1:1", tls_ca="/none.pem")
    assert refusal(config) == (
        "connect tcp://127.0.0.1:1: LULL_TLS_CA=/none.pem: [Errno 2] No such file or directory, want a PEM file" + NEXT
    )
