"""What attach(tail_tokens=n) asks of the first batch: a chunk of tokens is right, or refused with a sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from models import Gpt, text_loss, twin
from test_tail_tokens import IGNORED, WAYS, attached, shifted_loss, sum_loss, texts

import lull

pytestmark = pytest.mark.cpu

Loss = Callable[[Any], torch.Tensor]


class Placed(Gpt):
    """Its head adds something to each position, which begins at zero."""

    def __init__(self) -> None:
        super().__init__(drop=0.0, depth=2)
        self.places = nn.Parameter(torch.zeros(64, 64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x) + self.places[: x.shape[1]])


class TwoAhead(Gpt):
    """A second head, which begins at zero, says the token after the next one."""

    def __init__(self) -> None:
        super().__init__(drop=0.0, depth=2)
        self.second = nn.Linear(64, 256, bias=False)
        nn.init.zeros_(self.second.weight)

    def losses(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        heads = ((self.head, 1), (self.second, 2))
        return torch.stack(
            [F.cross_entropy(h(x)[:, :-n].flatten(0, 1), ids[:, n:].flatten(), reduction="sum") for h, n in heads]
        ).sum()


def small() -> Gpt:
    return Gpt(drop=0.0, depth=2)


def two_heads_loss(model: Any) -> Loss:
    return lambda ids: model.losses(ids)


def decayed_loss(model: nn.Module) -> Loss:
    """A sum, with the head's weights in it once a call."""
    plain = sum_loss(model)
    return lambda ids: plain(ids) + 3 * model.head.weight.square().sum()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("make", "loss_of", "told"),
    [
        (Placed, text_loss, lambda n: {"weights": torch.ones(n, 64)}),
        (TwoAhead, two_heads_loss, lambda n: {"reduction": "sum"}),
        (small, decayed_loss, lambda n: {"reduction": "sum"}),
    ],
)
def test_what_only_parameters_behind_the_blocks_show_is_refused(
    make: Callable[[], Gpt], loss_of: Callable[[nn.Module], Loss], told: Callable[[int], dict[str, Any]], n: int
) -> None:
    torch.manual_seed(7)
    model = make().double()
    rec = attached(model, tail_tokens=16)
    with pytest.raises(lull.RuntimeRefusal, match=r"^elastic\.backward tail(_tokens)?: .*the microbatch is undone$"):
        rec.elastic.backward(texts(n), loss_of(model), **told(n))
    assert all(p.grad is None for p in model.parameters())


def test_weights_that_are_right_at_both_ends_and_wrong_in_between_are_refused() -> None:
    """Each stretch that counts has as many weights as labels, but one token later."""
    torch.manual_seed(7)
    model = small()
    labels = torch.full((1, 64), IGNORED)
    labels[0, 1:3] = labels[0, 20:30] = labels[0, 60:62] = 1
    weights = labels[:, 1:] != IGNORED
    weights[0, 19], weights[0, 29] = False, True
    rec = attached(model, tail_tokens=4)
    batch = {"ids": texts(1, 64), "labels": labels}
    with pytest.raises(lull.RuntimeRefusal, match=r"of 64 tokens is not that of 16 chunks of 4, want a loss that adds"):
        rec.elastic.backward(batch, shifted_loss(model), weights=weights)


@pytest.mark.parametrize("columns", [63, 70])
def test_weights_of_another_number_of_tokens_are_refused(columns: int) -> None:
    torch.manual_seed(7)
    model = small()
    rec = attached(model, tail_tokens=16)
    with pytest.raises(lull.RuntimeRefusal, match=r"the gradient of 64 tokens is not that of the first 1 and the "):
        rec.elastic.backward(texts(2), text_loss(model), weights=torch.ones(2, columns))
    rec.elastic.backward(texts(2), text_loss(model), weights=torch.ones(2, 64))
    with pytest.raises(
        lull.RuntimeRefusal,
        match=rf"weights: {columns} numbers a sample where blocks give 64 tokens, want 64 as at the first batch; the ",
    ):
        rec.elastic.backward(texts(2), text_loss(model), weights=torch.ones(2, columns))


def test_a_head_of_zeros_is_refused_since_its_tokens_say_nothing() -> None:
    model = small()
    nn.init.zeros_(model.head.weight)
    rec = attached(model, tail_tokens=16)
    with pytest.raises(lull.RuntimeRefusal, match=r"tail_tokens: no sample has two tokens .* a head that begins at"):
        rec.elastic.backward(texts(2), text_loss(model), weights=torch.ones(2, 64))


@pytest.mark.parametrize("n", [1, 3])
def test_a_loss_may_view_its_labels_and_a_head_what_the_blocks_gave(n: int) -> None:
    class Viewing(Gpt):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x.view(-1, x.shape[-1])))

    torch.manual_seed(7)
    model = Viewing(drop=0.0, depth=2).double()
    other = twin(model)
    ids = texts(n)
    pair = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def loss_of(model: nn.Module) -> Loss:
        return lambda pair: F.cross_entropy(model(pair[0]), pair[1].view(-1))

    attached(model, tail_tokens=16).elastic.backward(pair, loss_of(model), weights=torch.ones(n, 64))
    loss_of(other)(pair).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12)


def cast_loss(model: nn.Module) -> Loss:
    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return text_loss(model)(ids)

    return loss


def wide_loss(model: nn.Module) -> Loss:
    return lambda ids: F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("low", [False, True], ids=["autocast", "bfloat16"])
def test_rounding_to_16_bits_is_not_taken_for_a_loss_that_does_not_separate(low: bool, tokens: int) -> None:
    torch.manual_seed(7)
    model = small().bfloat16() if low else small()
    rec = attached(model, tail_tokens=tokens)
    rec.elastic.backward(texts(3), (wide_loss if low else cast_loss)(model), weights=torch.ones(3, 64))
    assert rec.elastic._tail is not None
    assert (rec.elastic._tail.asked, rec.elastic._tail.ahead) == (2, 0)


def test_many_chunks_of_16_bits_add_up_to_no_less_than_one() -> None:
    """A chunk of one token in 1024 is too small for bfloat16's sum of the others. Against float64."""
    torch.manual_seed(7)
    model = small().bfloat16()
    exact = twin(model).double()
    ids = torch.randint(0, 4, (1, 1025))
    rec = attached(model, tail_tokens=1)
    rec.elastic.backward(ids, wide_loss(model), weights=torch.ones(1, 1024))
    F.cross_entropy(exact(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    for got, want in ((model.head.weight, exact.head.weight), (model.norm.bias, exact.norm.bias)):
        off = float((got.grad.double() - want.grad).norm() / want.grad.norm())
        assert off < 0.02, "0.1 and more where chunks are added up in bfloat16"


@given(
    name=st.sampled_from(sorted(WAYS)),
    n=st.integers(1, 2),
    tokens=st.integers(1, 70),
    rows=st.integers(0, 2),
    slip=st.sampled_from([0, 0, 1, -1]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_a_batch_is_trained_as_in_one_pass_or_refused(
    name: str, n: int, tokens: int, rows: int, slip: int, seed: int
) -> None:
    """Whatever the chunks, and where weights= stand a token too early or too late. Of two samples both are asked."""
    way = WAYS[name]
    torch.manual_seed(seed)
    model = small().double()
    other = twin(model)
    batch = way.draw(n)
    told = way.told(batch)
    if "weights" in told:
        told["weights"] = told["weights"].roll(slip, 1)
    rec = attached(model, partition="checked", tail=rows, tail_tokens=tokens)
    try:
        rec.elastic.backward(batch, way.loss_of(model), **told)
    except lull.RuntimeRefusal:
        assert slip or name.startswith(("labels", "a label")), "a batch that may go in chunks"
        assert all(p.grad is None for p in model.parameters())
        return
    finally:
        rec.elastic.close()
    way.loss_of(other)(batch).backward()
    norm = sum(float(q.grad.norm()) ** 2 for q in other.parameters()) ** 0.5
    for (key, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert float((p.grad - q.grad).norm()) <= 1e-9 * norm, key
