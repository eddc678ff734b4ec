"""The bytes of the control channel: a Unix socket, or TCP with TLS. Standard library only."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from typing import Protocol

from lull._config import Config
from lull._errors import ChannelError

__all__ = ["TLSTransport", "Transport", "UnixTransport", "connect"]

_CHUNK = 64 << 10
_CONNECT_S = 1.0
_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Transport(Protocol):
    """One connection. recv is called on one thread, everything else from any."""

    def recv(self) -> bytes | None:
        """What came, b"" at the end of the connection, None when the timeout is over."""

    def send(self, line: bytes) -> bool:
        """Sends the whole line without waiting; False when it could not, and then the connection
        takes no more."""

    def hung_up(self) -> bool:
        """Whether the peer has closed, although lines of it may still be unread."""

    def set_timeout(self, seconds: float) -> None:
        """How long recv waits."""

    def abort(self) -> None:
        """Makes recv end, from another thread."""

    def close(self) -> None:
        """Closes the descriptor; in a forked child this leaves the parent's connection alone."""

    def fileno(self) -> int:
        """The descriptor."""


class UnixTransport:
    """A Unix socket with blocking reads and a timeout that the kernel keeps: one system call an
    order, no poll before it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLRDHUP)
        self.set_timeout(1.0)

    def recv(self) -> bytes | None:
        try:
            return self._sock.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, line: bytes) -> bool:
        try:
            if self._sock.send(line, _NOW) == len(line):
                return True
        except OSError:
            pass
        # A full buffer means that the sidecar has not read for long, and half a line cannot be
        # taken back: no more is written, and reading goes on to the end.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        return False

    def hung_up(self) -> bool:
        return bool(self._poll.poll(0))

    def set_timeout(self, seconds: float) -> None:
        micros = max(1, round(seconds * 1e6))
        timeval = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()


class TLSTransport:
    """TCP with TLS. An SSL object takes one call at a time, so the wait for data is outside its
    lock."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()
        self._timeout_ms = 1000
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._hup = select.poll()
        self._hup.register(sock, select.POLLRDHUP)

    def recv(self) -> bytes | None:
        try:
            with self._lock:
                if self._sock.pending():
                    return self._sock.recv(_CHUNK)
            if not self._poll.poll(self._timeout_ms):
                return None
            with self._lock:
                return self._sock.recv(_CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except (OSError, ValueError):
            return b""

    def send(self, line: bytes) -> bool:
        try:
            with self._lock:
                if self._sock.send(line) == len(line):
                    return True
        except (OSError, ValueError):
            pass
        self.abort()
        return False

    def hung_up(self) -> bool:
        return bool(self._hup.poll(0))

    def set_timeout(self, seconds: float) -> None:
        self._timeout_ms = max(1, round(seconds * 1e3))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()


def connect(config: Config) -> Transport:
    """Opens config.socket; raises ChannelError."""
    try:
        if config.socket.startswith("tcp://"):
            return TLSTransport(_connect_tls(config))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_CONNECT_S)
            sock.connect(config.socket)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return UnixTransport(sock)
    except OSError as error:
        raise ChannelError(
            f"connect {config.socket}: {_why(config, error)}; training goes on with what it has, and it is tried again"
        ) from error


def _why(config: Config, error: OSError) -> str:
    """What the system said, and what that means."""
    if isinstance(error, FileNotFoundError):
        return f"no such socket ({error}), want a running sidecar's (LULL_SOCKET)"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens there ({error}), want a running sidecar's (LULL_SOCKET)"
    if isinstance(error, PermissionError) and not config.socket.startswith("tcp://"):
        return f"this user may not ({error}), want it in trainers.allow_uids of lull.yaml"
    return str(error)


def _connect_tls(config: Config) -> ssl.SSLSocket:
    host, _, port = config.socket.removeprefix("tcp://").rpartition(":")
    try:
        context = ssl.create_default_context(cafile=config.tls_ca or None)
    except OSError as error:
        raise OSError(f"LULL_TLS_CA={config.tls_ca}: {error}, want a PEM file") from error
    raw = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(raw, server_hostname=host.strip("[]"))
    except BaseException:
        raw.close()
        raise
