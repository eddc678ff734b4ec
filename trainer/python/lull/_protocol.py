"""Reads and writes the lines of the control channel (PROTOCOL.md).

One JSON object a line, UTF-8, at most 64 KiB with its newline. Unknown fields
are ignored; a line that is no valid message raises LineError, which holds the
error line to answer with. What is read and written follows from the dataclasses
of _messages.py. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from lull._errors import LineError, ProtocolError
from lull._messages import (
    HOWS,
    MESSAGES,
    VERSION,
    Ack,
    Budget,
    Bye,
    Cost,
    Drain,
    Error,
    Hello,
    MemoryModel,
    Message,
    Pace,
    Ping,
    Pong,
    Progress,
    Refused,
    Report,
    Request,
    Span,
    Welcome,
    Yield,
)

__all__ = [
    "HOWS",
    "MAX_LINE",
    "MESSAGES",
    "VERSION",
    "Ack",
    "Budget",
    "Bye",
    "Cost",
    "Drain",
    "Error",
    "Hello",
    "MemoryModel",
    "Message",
    "Pace",
    "Ping",
    "Pong",
    "Progress",
    "Refused",
    "Report",
    "Request",
    "Span",
    "Welcome",
    "Yield",
    "decode",
    "encode",
]

MAX_LINE: Final = 64 << 10
"""Bytes of the longest line, its newline included."""

_MAX_INT: Final = (1 << 63) - 1
_WANT_INT: Final = f"an integer from 0 to {_MAX_INT}"

_Read = Callable[[str, str, Any], Any]
"""(what, where, JSON value) -> the field's value, or LineError."""


class _Required:
    """Marks a field without a default."""


def _kind(value: object) -> str:
    """Names a JSON value's kind, in the words that the Go side uses."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a fraction"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _read_int(what: str, where: str, value: Any) -> int:
    if type(value) is not int:
        raise LineError(what, where, f"got {_kind(value)}, want {_WANT_INT}")
    if not 0 <= value <= _MAX_INT:
        raise LineError(what, where, f"got an integer out of range, want {_WANT_INT}")
    return value


def _read_float(what: str, where: str, value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise LineError(what, where, f"got {_kind(value)}, want a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise LineError(what, where, "got a number out of range, want a finite number")
    return number


def _read_str(what: str, where: str, value: Any) -> str:
    if type(value) is not str:
        raise LineError(what, where, f"got {_kind(value)}, want a string")
    return value if value.isascii() else _mend(value)


def _mend(text: str) -> str:
    """Half of a surrogate pair is no character: it reads as U+FFFD, as in Go."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _read_bool(what: str, where: str, value: Any) -> bool:
    if type(value) is not bool:
        raise LineError(what, where, f"got {_kind(value)}, want true or false")
    return value


def _read_sizes(what: str, where: str, value: Any) -> dict[str, int]:
    if type(value) is not dict:
        raise LineError(what, where, f"got {_kind(value)}, want an object")
    return {_mend(key): _read_int(what, f"{where}.{_mend(key)}", value[key]) for key in sorted(value)}


def _reader(hint: Any) -> _Read:
    """The reader of a field, from its annotation."""
    plain: dict[Any, _Read] = {int: _read_int, float: _read_float, str: _read_str, bool: _read_bool}
    if hint in plain:
        return plain[hint]
    if is_dataclass(hint):
        return _Struct(cast("type[Any]", hint)).read
    if get_origin(hint) is dict:
        return _read_sizes
    if get_origin(hint) is UnionType:
        return _reader(get_args(hint)[0])  # "X | None": null never reaches a reader
    args = get_args(hint)
    return _list_of(_reader(args[0])) if args[-1] is Ellipsis else _row_of([_reader(a) for a in args])


def _list_of(read: _Read) -> _Read:
    def read_list(what: str, where: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise LineError(what, where, f"got {_kind(value)}, want an array")
        return tuple(read(what, f"{where}[{i}]", item) for i, item in enumerate(value))

    return read_list


def _row_of(reads: list[_Read]) -> _Read:
    def read_row(what: str, where: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(reads):
            raise LineError(what, where, f"got {_kind(value)}, want an array of {len(reads)}")
        return tuple(read(what, f"{where}[{i}]", value[i]) for i, read in enumerate(reads))

    return read_row


class _Struct:
    """Reads and writes one dataclass."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.what = cls.__name__.lower()
        hints = get_type_hints(cls)
        self.fields: list[tuple[str, _Read, Any]] = [
            (f.name, _reader(hints[f.name]), _Required if f.default is MISSING else f.default) for f in fields(cls)
        ]

    def read(self, what: str, where: str, value: Any) -> Any:
        if type(value) is not dict:
            raise LineError(what, where, f"got {_kind(value)}, want an object")
        prefix = f"{where}." if where else ""
        args = []
        for name, read, default in self.fields:
            item = value.get(name)
            if item is not None:
                args.append(read(what, prefix + name, item))
            elif default is _Required:
                raise LineError(what, prefix + name, "missing")
            else:
                args.append(default)
        return self.cls(*args)

    def write(self, message: Message) -> dict[str, Any]:
        body: dict[str, Any] = {"type": self.what}
        for name, _, _ in self.fields:
            value = getattr(message, name)
            if value is not None:
                body[name] = _plain(value)
        return body


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, type) and is_dataclass(value):
        return {f.name: _plain(v) for f in fields(value) if (v := getattr(value, f.name)) is not None}
    return value


_BY_CLASS: Final[dict[type[Any], _Struct]] = {cls: _Struct(cls) for cls in MESSAGES}
_BY_TYPE: Final[dict[str, _Struct]] = {struct.what: struct for struct in _BY_CLASS.values()}
_WANT_TYPE: Final = ", ".join(_BY_TYPE)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def decode(line: bytes) -> Message:
    """Reads one line (with or without its newline); raises LineError."""
    try:
        value = _decoder.decode(line.decode())
    except (ValueError, RecursionError):
        raise LineError("line", "json", "not valid, want one JSON object in UTF-8") from None
    if type(value) is not dict:
        raise LineError("line", "json", f"got {_kind(value)}, want one JSON object in UTF-8")
    kind = value.get("type")
    struct = _BY_TYPE.get(kind) if type(kind) is str else None
    if struct is None:
        raise LineError("line", "type", f"unknown, want one of {_WANT_TYPE}")
    message = cast("Message", struct.read(struct.what, "", value))
    check = _CHECKS.get(struct.cls)
    if check is not None:
        check(message)
    return message


def encode(message: Message) -> bytes:
    """Writes one line with its newline; raises ProtocolError for one that no peer would take."""
    struct = _BY_CLASS[type(message)]
    try:
        line = _encoder.encode(struct.write(message)).encode() + b"\n"
    except ValueError:
        raise ProtocolError(f"encode {struct.what}: a number is not finite; the line is not sent") from None
    if len(line) > MAX_LINE:
        raise ProtocolError(f"encode {struct.what}: {len(line)} bytes, want at most {MAX_LINE}; the line is not sent")
    return line


def _check_hello(m: Hello) -> None:
    if not m.job:
        raise LineError("hello", "job", "empty, want the job's name")
    if m.world < 1 or m.rank >= m.world:
        raise LineError("hello", "rank", f"got {m.rank} of {m.world}, want 0 <= rank < world")


def _check_ack(m: Ack) -> None:
    if m.how not in HOWS:
        raise LineError("ack", "how", f"unknown, want one of {', '.join(HOWS)}")


def _check_pace(m: Pace) -> None:
    if not 0.0 <= m.duty <= 1.0:
        raise LineError("pace", "duty", "got a number out of range, want 0 to 1")


_CHECKS: Final[dict[type[Any], Callable[[Any], None]]] = {Hello: _check_hello, Ack: _check_ack, Pace: _check_pace}
