"""What a microbatch's loss counts for within the batch's."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lull._errors import RuntimeRefusal
from lull._torch.shares import of_samples, shares

pytestmark = pytest.mark.cpu

positive = st.floats(0, 1e6, allow_subnormal=False)
negative = st.floats(-1e6, -1e-6)


@given(st.lists(positive, min_size=1, max_size=20).filter(any), st.data())
def test_shares_of_any_cut_add_up_to_one(weights: list[float], data: st.DataObject) -> None:
    size = len(weights)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=4))})
    share = shares(size, "mean", torch.tensor(weights, dtype=torch.float64))
    found = [share(start, stop) for start, stop in pairwise(cuts)]
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= 0


@given(st.lists(positive, max_size=8), negative, st.lists(st.one_of(positive, negative), max_size=8))
def test_negative_weight_is_refused_by_the_place_of_the_first(
    before: list[float], below: float, after: list[float]
) -> None:
    """Also where a microbatch's weights add up to 0, and would count for nothing."""
    weights = [*before, below, *after]
    want = f"elastic.backward weights: sample {len(before)} has {below}, want at least 0"
    with pytest.raises(RuntimeRefusal, match=re.escape(want) + ".*; nothing was trained$"):
        shares(len(weights), "mean", torch.tensor(weights, dtype=torch.float64))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_without_a_finite_sum_above_zero_are_refused(weights: list[float]) -> None:
    with pytest.raises(RuntimeRefusal, match=r"weights: sum is .*, want a finite number above 0"):
        shares(2, "mean", torch.tensor(weights))


@given(st.integers(1, 6), st.integers(1, 9), st.data())
def test_weights_by_token_share_out_samples_and_their_tokens(size: int, length: int, data: st.DataObject) -> None:
    each = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, 3), min_size=length, max_size=length), min_size=size, max_size=size))
    )
    if not int(each.sum()):
        return
    share = shares(size, "mean", *of_samples(each))
    at, first = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, length))
    whole = float(each.sum())
    assert share(0, size) == 1.0
    assert share(at, at + 1) == float(each[at].sum()) / whole
    parts = [share(at, at + 1, (0, first)), share(at, at + 1, (first, length + 1))]
    assert parts == [float(each[at, :first].sum()) / whole, float(each[at, first:].sum()) / whole]


def test_a_negative_weight_of_a_token_is_refused_with_its_sample() -> None:
    with pytest.raises(RuntimeRefusal, match=r"weights: sample 1 has -1\.0, want at least 0"):
        of_samples(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(
        RuntimeRefusal, match=r"weights: got shape \(3,\), want \(2,\) or \(2, tokens\); nothing was tr"
    ):
        shares(2, "mean", torch.ones(3))
