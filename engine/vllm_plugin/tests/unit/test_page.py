"""The shared page: vectors that Go reads too, and a writer against a reader."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lull_vllm import _page
from lull_vllm._errors import PageError

pytestmark = pytest.mark.cpu

VECTORS = Path(__file__).parents[2] / "testdata" / "pages.json"
KINDS = {
    "telemetry": (_page.TELEMETRY_MAGIC, _page.TELEMETRY_FIELDS),
    "bound": (_page.BOUND_MAGIC, _page.BOUND_FIELDS),
}


def vectors() -> list[Any]:
    return [pytest.param(v, id=v["name"]) for v in json.loads(VECTORS.read_text())]


@pytest.mark.parametrize("vector", vectors())
def test_page_decodes_as_the_vector_says(vector: dict[str, Any]) -> None:
    magic, fields = KINDS[vector["page"]]
    raw = bytes.fromhex(vector["hex"])
    if "error" in vector:
        with pytest.raises(PageError, match=vector["error"]):
            _page.decode(magic, raw, fields)
        return
    assert _page.decode(magic, raw, fields) == (vector["seq"], vector["fields"])


@pytest.mark.parametrize("name", ["telemetry", "bound", "bound with the largest values"])
def test_page_encodes_as_the_vector_says(name: str) -> None:
    vector = next(v for v in json.loads(VECTORS.read_text()) if v["name"] == name)
    magic, fields = KINDS[vector["page"]]
    raw = _page.encode(magic, vector["seq"], _page.words(fields, vector["fields"]))
    assert raw.hex() == vector["hex"]


def test_encode_refuses_an_odd_sequence() -> None:
    with pytest.raises(ValueError, match="sequence 3 is odd, want an even one"):
        _page.encode(_page.BOUND_MAGIC, 3, [])


def test_writer_page_is_what_encode_says(tmp_path: Path) -> None:
    path = tmp_path / "v.page"
    writer = _page.PageWriter(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    writer.write([1, 2, 3, 4, 5, 6])
    want = _page.encode(_page.BOUND_MAGIC, 2, [1, 2, 3, 4, 5, 6])
    assert path.read_bytes() == want.ljust(_page.SIZE, b"\0")
    assert path.stat().st_mode & 0o777 == 0o600
    writer.close()
    assert not path.exists()


def test_closing_a_writer_leaves_the_page_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "v.page"
    old = _page.PageWriter(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    new = _page.PageWriter(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    old.close()
    assert path.exists()
    new.close()


def test_reader_says_what_changed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "v.bound"
    writer = _page.PageWriter(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    reader = _page.PageReader(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    assert reader.read() == dict.fromkeys(_page.BOUND_FIELDS, 0)
    assert reader.read() is None and not reader.changed()
    writer.write([1, 2, 3, 4, 5, 6])
    assert reader.changed()
    assert reader.read() == dict(zip(_page.BOUND_FIELDS, range(1, 7), strict=True))
    reader.close()
    writer.close()


def test_truncated_page_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "v.bound"
    writer = _page.PageWriter(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    reader = _page.PageReader(path, _page.BOUND_MAGIC, _page.BOUND_FIELDS)
    os.truncate(path, 0)
    with pytest.raises(PageError, match="0 bytes, want at least 32"):
        reader.read()
    reader.close()
    writer.close()


def test_reader_never_sees_a_torn_page(tmp_path: Path) -> None:
    path = tmp_path / "v.page"
    count = len(_page.TELEMETRY_FIELDS)
    writer = _page.PageWriter(path, _page.TELEMETRY_MAGIC, _page.TELEMETRY_FIELDS)
    stop = threading.Event()

    def write() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            writer.write([value] * count)

    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    for _ in range(3000):
        try:
            _, fields = _page.decode(
                _page.TELEMETRY_MAGIC, path.read_bytes(), _page.TELEMETRY_FIELDS
            )
        except PageError:
            continue
        seen += 1
        assert len(set(fields.values())) == 1
    stop.set()
    thread.join()
    writer.close()
    assert seen > 100
