"""attach(tail_tokens=n): norm, head and loss take the memory of n tokens, and the gradient is the same sum."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Recorder, text_loss, twin
from test_exact import same_gradients

import lull

pytestmark = pytest.mark.cpu

IGNORED = -100


def attached(model: nn.Module, **options: Any) -> Recorder:
    return Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"budget": 256 * MIB, **options})


def texts(n: int, length: int = 65) -> torch.Tensor:
    return torch.randint(0, 256, (n, length))


def padded(n: int) -> torch.Tensor:
    ids = torch.randint(1, 256, (n, 65))
    return torch.where(torch.arange(65) < torch.randint(8, 65, (n, 1)), ids, 0)


def labelled(n: int) -> dict[str, torch.Tensor]:
    """As Hugging Face's: labels stand at their own token, prompts and padding have none."""
    ids = texts(n)
    begins, ends = torch.randint(1, 20, (n, 1)), torch.randint(24, 65, (n, 1))
    at = torch.arange(65)
    return {"ids": ids, "labels": torch.where((at >= begins) & (at < ends), ids, IGNORED)}


def mean_loss(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    """Of next tokens that are no padding."""
    return lambda ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def sum_loss(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    return lambda ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def shifted_loss(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    """All tokens go through the model; the loss moves the labels, as transformers' ForCausalLMLoss does."""

    def loss(batch: Any) -> torch.Tensor:
        labels = F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
        return F.cross_entropy(model(batch["ids"]).flatten(0, 1), labels.flatten())

    return loss


def tagging_loss(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    """A label for each token, its own."""
    return lambda batch: F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


@dataclass(frozen=True)
class Way:
    draw: Callable[[int], Any]
    loss_of: Callable[[nn.Module], Callable[[Any], torch.Tensor]]
    told: Callable[[Any], dict[str, Any]]
    ahead: int


WAYS = {
    "mean over next tokens": Way(padded, mean_loss, lambda ids: {"weights": ids[:, 1:] != 0}, 0),
    "sum": Way(texts, sum_loss, lambda ids: {"reduction": "sum"}, 0),
    "labels that the loss moves": Way(labelled, shifted_loss, lambda b: {"weights": b["labels"][:, 1:] != IGNORED}, 1),
    "a label a token": Way(labelled, tagging_loss, lambda b: {"weights": b["labels"] != IGNORED}, 0),
}


def by_hand(model: Gpt, ids: torch.Tensor, tokens: int, whole: int, rows: int) -> None:
    """A microbatch in plain PyTorch: blocks, then norm, head and loss in chunks, then back through blocks."""
    x = model.tokens(ids[:, :-1])
    for block in model.blocks:
        x = block(x)
    collected = torch.zeros_like(x)
    for start in range(0, len(ids), rows):
        mine = slice(start, start + rows)
        for first in range(0, x.shape[1], tokens):
            span = slice(first, first + tokens)
            part = x.detach()[mine, span].requires_grad_()
            labels = ids[mine, 1:][:, span]
            loss = F.cross_entropy(model.head(model.norm(part)).flatten(0, 1), labels.flatten())
            (loss * (labels.numel() / whole)).backward()
            collected[mine, span] = part.grad
    x.backward(collected)


@pytest.mark.parametrize(("rows", "tied"), [(0, False), (0, True), (3, False)])
def test_storm_of_orders_changes_no_bit_of_a_tail_in_chunks_of_tokens(rows: int, tied: bool) -> None:
    """Against the same microbatches and chunks by hand."""
    torch.manual_seed(7)
    model = Gpt(tied=tied)
    other = twin(model)
    rec = attached(model, budget=64 * MIB, tail=rows, tail_tokens=24)
    rec.elastic.memory.observe(32, 24 * MIB)
    for i in range(3):
        batch = texts(32)
        torch.manual_seed(100 + i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(batch, text_loss(model), weights=torch.ones(32, 64))
        torch.manual_seed(100 + i)
        totals = {p: torch.zeros_like(p) for p in other.parameters()}
        start = 0
        for count in rec.parts:
            other.zero_grad()
            by_hand(other, batch[start : start + count], 24, 32 * 64, rows or count)
            for p, total in totals.items():
                total += p.grad
            start += count
        for p, total in totals.items():
            p.grad = total
        same_gradients(model, other, f"in batch {i}")
        model.zero_grad()


@pytest.mark.parametrize("tokens", [1, 7, 64, 100])
@pytest.mark.parametrize("name", WAYS)
def test_a_tail_in_chunks_of_tokens_is_one_pass(name: str, tokens: int) -> None:
    way = WAYS[name]
    torch.manual_seed(7)
    model = Gpt(drop=0.0, depth=2).double()
    other = twin(model)
    rec = attached(model, partition="checked", tail_tokens=tokens)
    for n in (6, 1):
        batch = way.draw(n)
        rec.elastic.backward(batch, way.loss_of(model), **way.told(batch))
        way.loss_of(other)(batch).backward()
    assert rec.elastic._tail is not None
    assert rec.elastic._tail.ahead == way.ahead
    norm = sum(float(p.grad.norm()) ** 2 for p in other.parameters()) ** 0.5
    for (key, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert float((p.grad - q.grad).norm()) <= 1e-12 * norm, key


def peak(tokens: int) -> int:
    """Bytes of a microbatch of one sample, whose logits are 8 MiB."""
    torch.manual_seed(7)
    model = Gpt(width=32, depth=2, drop=0.0)
    model.head = nn.Linear(32, 4096, bias=False)
    rec = attached(model, tail_tokens=tokens)
    rec.elastic.backward(texts(1, 513), text_loss(model), weights=torch.ones(1, 512))
    rec.elastic.device.pool.reset_peak()
    before = rec.elastic.device.pool.in_use()
    rec.elastic.backward(texts(1, 513), text_loss(model), weights=torch.ones(1, 512))
    took = rec.elastic.device.pool.peak() - before
    rec.elastic.close()
    return took


def test_a_single_samples_peak_is_that_of_its_chunk() -> None:
    whole, part = peak(512), peak(32)
    assert whole > 16 * MIB, "the logits, and what the loss keeps of them"
    assert part < whole / 3


class Pooled(Gpt):
    """Its head sees the mean of all tokens beside each."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x + x.mean(1, keepdim=True)))


class Around(Gpt):
    """What has a position goes around the blocks to the head."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = x = self.tokens(ids) * torch.arange(1, ids.shape[1] + 1)[:, None] ** 0.5
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x) + 1e-6 * first)


@pytest.mark.parametrize(
    ("make", "told", "text"),
    [
        (Pooled, {"weights": torch.ones(1, 64)}, r"tail_tokens: the gradient of 64 tokens is not that of the first 1 "),
        (Around, {"weights": torch.ones(1, 64)}, r"tail_tokens: what comes before its blocks reaches the loss around"),
        (Gpt, {"weights": torch.ones(1, 63)}, r"tail_tokens: the gradient of 64 tokens is not that of the first 1 "),
        (Gpt, {"weights": torch.ones(1)}, r"weights: want one number for each token of each sample where attach has"),
        (Gpt, {}, r"weights: want one number for each token of each sample where attach has .*nothing was trained$"),
        (
            Gpt,
            {"reduction": "sum"},
            r"tail_tokens: the gradient of 64 tokens is not that of the first 1 and the others",
        ),
    ],
)
def test_what_does_not_separate_over_tokens_is_refused_at_the_first_batch(
    make: type[Gpt], told: dict[str, Any], text: str
) -> None:
    torch.manual_seed(7)
    model = make(drop=0.0, depth=2)
    rec = attached(model, tail_tokens=16)
    with pytest.raises(lull.RuntimeRefusal, match=text):
        rec.elastic.backward(texts(1), text_loss(model), **told)
    assert all(p.grad is None for p in model.parameters())


def test_a_batch_whose_tokens_say_nothing_of_each_other_is_refused() -> None:
    """One label in each sample: whether a chunk looks ahead cannot be seen."""
    torch.manual_seed(7)
    model = Gpt(drop=0.0, depth=2)
    rec = attached(model, tail_tokens=16)
    batch = labelled(2)
    batch["labels"][:] = IGNORED
    batch["labels"][:, 30] = 1
    with pytest.raises(lull.RuntimeRefusal, match=r"tail_tokens: no sample has two tokens beside each other whose gr"):
        rec.elastic.backward(batch, shifted_loss(model), weights=batch["labels"][:, 1:] != IGNORED)


@pytest.mark.parametrize("tokens", [-1, 1.5, True])
def test_tokens_that_are_no_number_are_refused(tokens: Any) -> None:
    with pytest.raises(
        lull.RuntimeRefusal, match=r"attach tail_tokens: got .*, want 0 or a number of tokens; nothing is"
    ):
        attached(Gpt(), tail_tokens=tokens)
