"""What is encoded decodes to the same message, and no line does anything but decode or LineError."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._errors import LineError
from lull._protocol import (
    HOWS,
    MESSAGES,
    Ack,
    Cost,
    Error,
    Hello,
    MemoryModel,
    Message,
    Pace,
    Progress,
    Span,
    decode,
    encode,
)

pytestmark = pytest.mark.cpu

_ints = st.integers(0, (1 << 63) - 1)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _struct(cls: type[Any], **given_by_hand: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: given_by_hand.get(f.name, _values(hints[f.name])) for f in fields(cls)})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    by_hint: dict[Any, st.SearchStrategy[Any]] = {
        int: _ints,
        float: _floats,
        str: _texts,
        bool: st.booleans(),
        float | None: st.none() | _floats,
        dict[str, int]: st.dictionaries(_texts, _ints, max_size=4),
        tuple[tuple[int, float], ...]: st.lists(st.tuples(_ints, _floats), max_size=3).map(tuple),
    }
    if hint in by_hint:
        return by_hint[hint]
    nested: dict[Any, type[Any]] = {tuple[Span, ...]: Span, tuple[Cost, ...]: Cost}
    if hint in nested:
        return st.lists(_struct(nested[hint]), max_size=3).map(tuple)
    return st.none() | _struct({MemoryModel | None: MemoryModel, Progress | None: Progress}[hint])


_BY_HAND: dict[type[Any], dict[str, st.SearchStrategy[Any]]] = {
    Hello: {"job": st.text("abc", min_size=1), "rank": st.just(0), "world": st.integers(1, 9)},
    Ack: {"how": st.sampled_from(HOWS)},
    Pace: {"duty": st.floats(0, 1)},
}
_messages: st.SearchStrategy[Message] = st.one_of(*(_struct(cls, **_BY_HAND.get(cls, {})) for cls in MESSAGES))


@given(_messages)
def test_message_survives_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(_messages, st.dictionaries(_texts.filter(lambda key: key not in _NAMES), st.none() | _ints | _texts))
def test_unknown_fields_are_ignored(message: Message, more: dict[str, object]) -> None:
    assert decode(json.dumps({**more, **json.loads(encode(message))}).encode()) == message


_NAMES = {"type"} | {f.name for cls in MESSAGES for f in fields(cls)}


@given(_messages, st.data())
def test_missing_required_field_is_named(message: Message, data: st.DataObject) -> None:
    required = [f.name for f in fields(message) if f.default is MISSING]
    if not required:
        return
    name = data.draw(st.sampled_from(required))
    body = json.loads(encode(message))
    del body[name]
    with pytest.raises(LineError) as caught:
        decode(json.dumps(body).encode())
    assert (caught.value.where, caught.value.rule) == (name, "missing")


@given(st.binary(max_size=200))
def test_garbage_is_a_line_error(garbage: bytes) -> None:
    _decodes_or_says_why(garbage)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@given(_messages, st.sampled_from(sorted(_NAMES - {"type"})), _json)
def test_wrong_value_in_any_field_is_a_line_error(message: Message, name: str, value: object) -> None:
    body = json.loads(encode(message))
    body[name] = value
    _decodes_or_says_why(json.dumps(body).encode())


def _decodes_or_says_why(line: bytes) -> None:
    try:
        message = decode(line)
    except LineError as error:
        message = Error(error.what, error.where, error.rule)
    assert decode(encode(message)) == message
