"""Errors that Lull raises. One base class, so that a caller can catch them all.

    LullError
    ├── ConfigError            a setting or an argument has a value that is not allowed
    ├── ProtocolError          the control channel
    │   ├── LineError          a line is no valid message; it has an error line to answer with
    │   └── LineTooLong        more than 64 KiB without a newline; the connection ends
    ├── ChannelError           the socket cannot be reached, or the peer refused this trainer
    ├── RankError              another rank of the job failed or is gone
    └── RuntimeRefusal         the model or the script does what Lull cannot keep exact

Texts have the form `op object: seen, wanted; what Lull does next`.
"""

from __future__ import annotations

__all__ = [
    "ChannelError",
    "ConfigError",
    "LineError",
    "LineTooLong",
    "LullError",
    "ProtocolError",
    "RankError",
    "RuntimeRefusal",
]


class LullError(Exception):
    """Base of every error that Lull raises."""


class ConfigError(LullError):
    """A setting or an argument has a value that is not allowed."""

    def __init__(self, key: str, value: object, want: str) -> None:
        super().__init__(f"config {key}: got {value!r}, want {want}; nothing is started")
        self.key = key
        self.value = value
        self.want = want


class ProtocolError(LullError):
    """Something on the control channel is not as PROTOCOL.md says."""


class LineError(ProtocolError):
    """A line is no valid message.

    `what` is the message's type (or `line`), `where` the field (or the place),
    `rule` what was seen and what was wanted: the three fields of an error line.
    """

    def __init__(self, what: str, where: str, rule: str) -> None:
        super().__init__(f"decode {what} {where}: {rule}; an error line answers it")
        self.what = what
        self.where = where
        self.rule = rule


class LineTooLong(ProtocolError):
    """The peer sent more than 64 KiB without a newline."""

    def __init__(self, seen: int, limit: int) -> None:
        super().__init__(f"decode line: {seen} bytes without a newline, want at most {limit}; the connection is closed")


class ChannelError(LullError):
    """The sidecar's socket cannot be reached, or it refused this trainer."""


class RankError(LullError):
    """Another rank of the job failed or is gone; what this rank did of the batch left no trace.

    `ranks` are those that are meant; empty where nobody can be named.
    """

    def __init__(self, ranks: tuple[int, ...], text: str) -> None:
        who = f"rank {', '.join(map(str, ranks))}" if ranks else "ranks"
        super().__init__(f"elastic.backward {who}: {text}; gradients, buffers and random state are as before the batch")
        self.ranks = ranks


class RuntimeRefusal(LullError):
    """The model or the script does what Lull cannot keep exact; attach says what to change."""
