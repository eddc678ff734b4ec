"""The error tree is as its file draws it."""

from __future__ import annotations

import re

import pytest

from lull import _errors

pytestmark = pytest.mark.cpu


def test_tree_is_the_one_that_is_drawn() -> None:
    drawn: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    assert _errors.__doc__ is not None
    for line in _errors.__doc__.splitlines():
        match = re.match(r"^( {4}[│ ]*(?:[├└]── )?)(\w+)(?:  |$)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        drawn[name] = stack[-1][1] if stack else "Exception"
        stack.append((depth, name))
    real = {name: getattr(_errors, name).__bases__[0].__name__ for name in _errors.__all__}
    assert drawn == real


def test_texts_say_what_was_seen_and_what_comes_next() -> None:
    assert str(_errors.LineTooLong(70000, 65536)) == (
        "decode line: 70000 bytes without a newline, want at most 65536; the connection is closed"
    )
    assert str(_errors.LineError("ack", "how", "unknown")) == "decode ack how: unknown; an error line answers it"
