"""From blocks to pages, against a slow byte-by-byte account of who owns what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull_vllm._errors import LayoutError
from lull_vllm._ranges import Layout, Run, TensorLayout, layout_of, runs_of

pytestmark = pytest.mark.cpu

PAGE = 64  # a small page keeps the byte-by-byte account fast


def owners(layout: Layout, runs: list[Run]) -> tuple[set[int], set[int]]:
    """Returns (bytes that may go, bytes that must go), one by one."""
    going = {b for r in runs for b in range(r.first, r.first + r.count)}
    around = {r.first - 1 for r in runs if r.left} | {r.first + r.count for r in runs if r.right}
    owner: dict[int, int] = {}
    must: set[int] = set()
    for group in layout.groups:
        own: dict[int, int] = {}
        for block in range(layout.blocks):
            start = group.base + block * group.pitch
            own.update(dict.fromkeys(range(start, start + group.extent), block))
        # A page that two layers share may stay.
        for address in {a // PAGE * PAGE for a, block in own.items() if block in going}:
            if all(own.get(a) in going for a in range(address, address + PAGE)):
                must.add(address)
        owner.update(own)
    allowed = {a for a, block in owner.items() if block in going | around}
    return allowed, must


@given(
    base=st.integers(0, 130),
    pitch=st.integers(PAGE, 3 * PAGE),
    gap=st.integers(0, 40),
    layers=st.integers(1, 3),
    out=st.sets(st.integers(0, 11)),
    settled=st.sets(st.integers(0, 11)),
)
def test_only_pages_of_the_runs_and_of_settled_neighbours_go(
    base: int, pitch: int, gap: int, layers: int, out: set[int], settled: set[int]
) -> None:
    blocks = 12
    span = max(1, pitch - gap)
    tensors = [
        TensorLayout(base + 4096 + layer * blocks * pitch, blocks, pitch, span)
        for layer in range(layers)
    ]
    layout = layout_of(tensors, blocks, PAGE)
    gone = [int(b in settled or b in out) for b in range(blocks)]
    runs = runs_of(out, gone)
    assert sorted(b for r in runs for b in range(r.first, r.first + r.count)) == sorted(out)
    allowed, must = owners(layout, runs)
    got: set[int] = set()
    for address, length in layout.pages_of(runs):
        assert address % PAGE == 0 and length % PAGE == 0 and length > 0
        got.update(range(address, address + length))
    assert got <= allowed
    assert must <= got


def test_layers_inside_one_block_form_one_group() -> None:
    tensors = [TensorLayout(4096 + 256 * layer, 10, 1024, 256) for layer in range(4)]
    layout = layout_of(tensors, 10, PAGE)
    assert layout.block_bytes == 1024
    assert layout.pages_of([Run(3, 2)]) == [(4096 + 3 * 1024, 2048)]


def test_rows_of_a_kernel_that_splits_blocks_are_joined() -> None:
    layout = layout_of([TensorLayout(4096, 20, 512, 512)], 10, PAGE)
    assert layout.block_bytes == 1024 and layout.groups[0].pitch == 1024


@pytest.mark.parametrize(
    ("tensors", "want"),
    [
        ([], "no KV tensors"),
        ([TensorLayout(0, 7, 512, 512)], "a tensor has 7 rows for 10 blocks"),
        ([TensorLayout(0, 10, 512, 1024)], "spans 1024 bytes but the next begins after 512"),
        ([TensorLayout(0, 10, 32, 32)], "a block is 32 bytes a layer, less than a page of 64"),
        (
            [TensorLayout(0, 10, 512, 512), TensorLayout(2048, 10, 512, 512)],
            "tensors at 0x0 and 0x800 overlap",
        ),
    ],
)
def test_layout_that_cannot_be_given_back_says_why(tensors: list[TensorLayout], want: str) -> None:
    with pytest.raises(LayoutError, match=want):
        layout_of(tensors, 10, PAGE)


def test_run_outside_the_pool_is_refused() -> None:
    layout = layout_of([TensorLayout(4096, 10, 512, 512)], 10, PAGE)
    with pytest.raises(LayoutError, match="run of 3 blocks from 8: the pool has 10"):
        layout.pages_of([Run(8, 3)])
