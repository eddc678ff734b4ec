"""attach(tail=n): norm, head and loss take the memory of n samples, and the gradient is the same sum."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXACT, ONE_PASS, Case
from models import MIB, Gpt, Recorder, text_loss, twin
from test_exact import cut, same_gradients
from test_one_pass import widened

import lull
from lull._torch.owed import Discard

pytestmark = pytest.mark.cpu


class Wide(Gpt):
    """A vocabulary whose logits are far larger than what the blocks save; as in language models, the loss is inside."""

    def __init__(self, vocabulary: int = 4096, drop: float = 0.0, **options: Any) -> None:
        super().__init__(width=32, depth=2, drop=drop, **options)
        self.head = nn.Linear(32, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().forward(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def attached(model: nn.Module, **options: Any) -> Recorder:
    return Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"budget": 256 * MIB, **options})


def by_hand(model: Gpt, ids: torch.Tensor, share: float, chunk: int) -> None:
    """The same microbatch in plain PyTorch: blocks, then norm, head and loss in chunks, then back through blocks."""
    x = model.tokens(ids[:, :-1])
    for block in model.blocks:
        x = block(x)
    collected = torch.zeros_like(x)
    for start in range(0, len(ids), chunk):
        part = x.detach()[start : start + chunk].requires_grad_()
        logits = model.head(model.norm(part))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[start : start + chunk, 1:].flatten())
        (loss * (share * len(part) / len(ids))).backward()
        collected[start : start + chunk] = part.grad
    x.backward(collected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk", [1, 3])
def test_storm_of_orders_changes_no_bit_of_a_chunked_tail(chunk: int, tied: bool) -> None:
    """Against the same microbatches and chunks by hand."""
    torch.manual_seed(7)
    model = Gpt(tied=tied)
    other = twin(model)
    rec = attached(model, budget=64 * MIB, tail=chunk)
    rec.elastic.memory.observe(32, 24 * MIB)
    for i in rec.batches(4):
        batch = torch.randint(0, 256, (32, 65))
        torch.manual_seed(100 + i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(batch, text_loss(model))
        after = torch.get_rng_state()
        torch.manual_seed(100 + i)
        totals = {p: torch.zeros_like(p) for p in other.parameters()}
        start = 0
        for count in rec.parts:
            other.zero_grad()
            by_hand(other, batch[start : start + count], count / 32, chunk)
            for p, total in totals.items():
                total += p.grad
            start += count
        for p, total in totals.items():
            p.grad = total
        assert torch.equal(after, torch.get_rng_state())
        same_gradients(model, other, f"in batch {i}")
        model.zero_grad()


@pytest.mark.parametrize("name", [name for name in ONE_PASS if name not in ("gradient penalty", "user checkpointing")])
def test_a_chunked_tail_is_one_pass(name: str) -> None:
    case = ONE_PASS[name]
    torch.manual_seed(7)
    model = case.make().double()
    other = twin(model)
    rec = attached(model, budget=64 * MIB, tail=2)
    for i in range(2):
        batch = widened(case.draw(case.size), True)
        with rec.storm(i, 2 * MIB, 48 * MIB):
            loss = rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
        whole = case.loss_of(other)(batch)
        whole.backward()
        assert loss.item() == pytest.approx(whole.item(), rel=1e-12)
    norm = sum(float(p.grad.norm()) ** 2 for p in other.parameters() if p.grad is not None) ** 0.5
    for (key, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or float((p.grad - q.grad).norm()) <= 1e-12 * norm, key


def peak(tail: int) -> int:
    """Bytes of a microbatch of 16 samples, each of whose logits are 1 MiB."""
    torch.manual_seed(7)
    model = Wide()
    rec = attached(model, tail=tail)
    seen: list[tuple[int, int]] = []
    rec.elastic.memory.observe(16, 64 * MIB)
    rec.elastic._next_size = lambda left: left  # type: ignore[method-assign]
    observe = rec.elastic.memory.observe
    rec.elastic.memory.observe = lambda n, took: (seen.append((n, took)), observe(n, took))[1]  # type: ignore[method-assign]
    rec.elastic.backward(torch.randint(0, 256, (16, 65)), model)
    rec.elastic.backward(torch.randint(0, 256, (16, 65)), model)
    rec.elastic.close()
    (samples, took) = seen[-1]
    assert samples == 16
    return took


def test_the_tails_peak_is_that_of_its_chunk() -> None:
    """What 16, 4 and 1 samples' logits and their gradients take beside the blocks, which take the same in each."""
    whole, four, one = peak(0), peak(4), peak(1)
    tail = (four - one) / 3
    assert tail > 1.5 * MIB, "a sample's logits are 1 MiB, and so is what the loss keeps of them"
    assert whole - one == pytest.approx(15 * tail, rel=0.35)
    assert one < whole / 3


def test_logits_are_gone_when_backward_begins() -> None:
    """Without chunks too: nothing of Lull's keeps what loss_fn made."""
    import weakref

    model = Gpt()
    rec = attached(model)
    kept: list[Any] = []
    alive: list[bool] = []

    def loss_fn(ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids[:, :-1])
        kept.append(weakref.ref(logits))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.register_hook(lambda grad: alive.append(kept[-1]() is not None))
        return loss

    rec.elastic.backward(torch.randint(0, 256, (4, 65)), loss_fn)
    assert alive
    assert not any(alive)


def test_autocast_and_dropout_in_blocks_and_tail() -> None:
    """Chunked twice alike: under orders and without."""
    found = []
    for stormy in (False, True):
        torch.manual_seed(7)
        model = Wide(drop=0.2)
        model.norm = nn.Sequential(model.norm, nn.Dropout(0.1))
        rec = attached(model, tail=2)
        rec.elastic._next_size = lambda left: min(left, 16)  # type: ignore[method-assign]

        def loss_fn(ids: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(ids)

        for i in rec.batches(1) if stormy else range(1):
            torch.manual_seed(8)
            batch = torch.randint(0, 256, (45, 65))
            model.zero_grad()
            rec.parts.clear()
            with rec.storm(3 + i, 2 * MIB, 12 * MIB, gap=(0.0002, 0.004)) if stormy else nullcontext():
                rec.elastic.backward(batch, loss_fn)
            assert rec.parts == [16, 16, 13]
        found.append([p.grad.clone() for p in model.parameters()])
        rec.elastic.close()
    assert all(map(torch.equal, *found))


class Embedded(Gpt):
    """Dropout before the blocks."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.tokens(ids), 0.1, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Turned(Gpt):
    """Samples along the second dimension inside."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids).transpose(0, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.transpose(0, 1)))


class Checkpointed(Gpt):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


class Keeping(nn.Module):
    """A block with an auxiliary loss in an attribute."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        self.aux = y.square().mean()
        return y


class Auxiliary(Gpt):
    def __init__(self) -> None:
        super().__init__(drop=0.0)
        self.blocks = nn.ModuleList(map(Keeping, self.blocks))


def with_auxiliary(model: Any) -> Any:
    return lambda ids: text_loss(model)(ids) + sum(block.aux for block in model.blocks)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case(Auxiliary, EXACT["transformer with dropout"].draw, with_auxiliary), "what a block keeps besides what it"),
        (Case(lambda: Embedded(drop=0.0), EXACT["transformer with dropout"].draw, text_loss), "gets other values when"),
        (Case(lambda: Turned(drop=0.0), EXACT["transformer with dropout"].draw, text_loss), "gave a tensor of shape"),
        (
            Case(lambda: Checkpointed(), EXACT["transformer with dropout"].draw, text_loss),
            "no block was called outside",
        ),
        (EXACT["gradient penalty"], "loss_fn takes a gradient itself"),
        (EXACT["cnn with batchnorm"], None),
    ],
)
def test_what_cannot_run_in_chunks_is_refused_at_the_first_batch(case: Case, text: str | None) -> None:
    torch.manual_seed(7)
    model = case.make()
    rec = attached(model, tail=1)
    batch = case.draw(4)
    before = [p.clone() for p in (*model.parameters(), *model.buffers())]
    if text is None:  # its tail has nothing that a chunk changes
        rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
        return
    with pytest.raises(
        lull.RuntimeRefusal, match=r"elastic.backward tail: .*attach with tail=0; the microbatch is und"
    ) as e:
        rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
    assert text in str(e.value)
    assert all(map(torch.equal, before, (*model.parameters(), *model.buffers())))
    assert all(p.grad is None for p in model.parameters())


def test_a_forward_pass_that_calls_other_blocks_later_is_refused() -> None:
    model = Gpt(drop=0.0)
    rec = attached(model, tail=1)
    batch = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(batch, text_loss(model))
    del model.blocks[3]
    with pytest.raises(
        lull.RuntimeRefusal, match="tail: loss_fn called 3 blocks, where its first call had called 4, want"
    ):
        rec.elastic.backward(batch, text_loss(model))


def test_memory_that_runs_out_while_the_tail_is_asked_about_is_no_reason_to_go_without_it() -> None:
    model = Gpt(drop=0.0)
    rec = attached(model, tail=1)
    calls = 0

    def loss_fn(ids: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        loss = text_loss(model)(ids)
        calls += not torch.is_grad_enabled()
        if calls and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    with pytest.raises(torch.OutOfMemoryError):
        rec.elastic.backward(torch.randint(0, 256, (4, 65)), loss_fn)
    assert calls


class Skipping(Gpt):
    """The tail sees the first block's answer too, and inputs want gradients as peft's enable_input_require_grads
    makes them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids).detach().requires_grad_()
        first = x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = block(x)
        return self.head(self.norm(first + x))


def test_a_leaf_behind_two_answers_is_one() -> None:
    torch.manual_seed(7)
    model = Skipping(drop=0.0).double()
    model.tokens.requires_grad_(False)
    other = twin(model)
    rec = attached(model, tail=1)
    batch = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(batch, text_loss(model))
    text_loss(other)(batch).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad is q.grad is None or torch.allclose(p.grad, q.grad, rtol=1e-10, atol=1e-12)


class Patched(Gpt):
    """As transformers' check_model_inputs: forward is another during a call, and put back without a finally."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        block = self.blocks[0]
        plain, seen = block.forward, []
        block.forward = lambda *args, **options: (seen.append(1), plain(*args, **options))[1]
        found = super().forward(ids)
        block.forward = plain
        assert len(seen) == 1, "wrapped twice"
        return found


@pytest.mark.parametrize("tail", [0, 1])
def test_a_forward_that_a_library_changed_is_put_back_where_a_pass_ends_early(tail: int) -> None:
    torch.manual_seed(7)
    model = Patched(drop=0.0)
    rec = attached(model, tail=tail)
    batch = torch.randint(0, 256, (4, 65))
    own = rec.elastic._boundary
    raised: list[int] = []

    def boundary() -> None:
        if rec.elastic.floor is not None and not raised:
            raised.append(1)
            raise Discard
        own()

    rec.elastic.hooks._boundary = boundary
    rec.elastic.backward(batch, text_loss(model))
    assert raised
    rec.elastic.backward(batch, text_loss(model))
    text_loss(model)(batch)


@pytest.mark.parametrize("tail", [-1, 1.5, True])
def test_a_tail_that_is_no_number_of_samples_is_refused(tail: Any) -> None:
    with pytest.raises(
        lull.RuntimeRefusal, match=r"attach tail: got .*, want 0 or a number of samples; nothing is attac"
    ):
        attached(Gpt(), tail=tail)


def test_the_users_hooks_on_blocks_see_what_they_change_once() -> None:
    """A hook of another library that doubles what a block gives."""
    torch.manual_seed(7)
    model = Gpt(drop=0.0).double()
    model.blocks[3].register_forward_hook(lambda module, args, output: 2 * output)
    other = twin(model)
    rec = attached(model, tail=1)
    batch = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(batch, text_loss(model))
    text_loss(other)(batch).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-10, atol=1e-12)
    assert "forward" not in model.blocks[0].__dict__
    assert cut(batch, 0, 1).shape == (1, 65)
