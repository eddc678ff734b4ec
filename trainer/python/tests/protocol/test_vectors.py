"""The vectors that Go reads too: each is decoded and encoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lull._errors import LineError, ProtocolError
from lull._protocol import MAX_LINE, MESSAGES, Bye, Pace, decode, encode

pytestmark = pytest.mark.cpu

_TRAINER = Path(__file__).parents[3]
VECTORS: list[dict[str, Any]] = [
    json.loads(line)
    for path in sorted((_TRAINER / "testdata").glob("*.jsonl"))
    for line in path.read_text().splitlines()
]


def _by_name(vector: dict[str, Any]) -> str:
    return str(vector["name"])


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["error"] is None], ids=_by_name)
def test_valid_vector_decodes_and_encodes(vector: dict[str, Any]) -> None:
    message = decode(vector["wire"].encode())
    line = encode(message)
    assert line.endswith(b"\n")
    assert json.loads(line) == vector["decoded"]
    assert decode(line) == message


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["error"] is not None], ids=_by_name)
def test_invalid_vector_gives_its_error_line(vector: dict[str, Any]) -> None:
    with pytest.raises(LineError) as caught:
        decode(vector["wire"].encode())
    got = {"what": caught.value.what, "where": caught.value.where, "rule": caught.value.rule}
    assert got == vector["error"]


def test_every_message_has_a_vector() -> None:
    seen = {v["decoded"]["type"] for v in VECTORS if v["error"] is None}
    assert seen == {cls.__name__.lower() for cls in MESSAGES}


def test_protocol_examples_are_valid() -> None:
    blocks = (_TRAINER / "PROTOCOL.md").read_text().split("```json\n")[1:]
    examples = [line for block in blocks for line in block.split("```")[0].splitlines()]
    assert {type(decode(line.encode())) for line in examples} == set(MESSAGES)


def test_protocol_names_every_field() -> None:
    text = (_TRAINER / "PROTOCOL.md").read_text()
    missing = [f"{cls.__name__}.{name}" for cls in MESSAGES for name in cls.__slots__ if f"`{name}`" not in text]
    assert missing == []


def test_bytes_that_are_no_utf8_are_refused() -> None:
    want = "decode line json: not valid, want one JSON object in UTF-8; an error line answers it"
    with pytest.raises(LineError) as caught:
        decode(b'{"type":"bye","reason":"\xff"}')
    assert str(caught.value) == want


def test_deep_nesting_is_refused_not_fatal() -> None:
    with pytest.raises(LineError):
        decode(b"[" * 60_000)


def test_line_that_no_peer_would_take_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match=r"^encode bye: 65563 bytes, want at most 65536; the line is not sent$"):
        encode(Bye("x" * MAX_LINE))
    with pytest.raises(ProtocolError, match=r"^encode pace: a number is not finite; the line is not sent$"):
        encode(Pace(float("nan")))
