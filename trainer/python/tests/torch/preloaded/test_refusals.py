"""Never silently wrong: what cannot be kept exact is refused with a sentence that says what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn as nn

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Mlp, Recorder, attach, text_loss, twin

pytestmark = pytest.mark.cpu


class Wide(nn.Module):
    """Two blocks; `between` runs on each block's input, `inside` within the block."""

    def __init__(self, between: Callable[[torch.Tensor], Any], block: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            self.between(x)
        return x.sum()


class Exp(nn.Module):
    """Saves its own output, which is the next block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.w(x).tanh())


def drop_in_forward(elastic: lull.Elastic) -> Callable[[torch.Tensor], None]:
    """Empties every slot there is, whenever it is called."""

    def drop(_: torch.Tensor) -> None:
        table = elastic._table
        if table is not None:
            for run in table.runs:
                run.empty()

    return drop


def test_in_place_edit_of_a_saved_tensor_is_refused_as_pytorch_refuses_it() -> None:
    model = Wide(lambda x: None, Exp)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(8, 64)
    elastic.backward(x, model)
    model.between = lambda x: x.data.add_(0) is None or x.detach().add_(1.0)
    with pytest.raises(RuntimeError, match=r"edited in place after it was saved; the microbatch is undone"):
        elastic.backward(x, model)
    plain = Wide(lambda x: x.detach().add_(1.0), Exp)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plain(x).backward()
    elastic.close()


def test_in_place_edit_of_a_parameter_before_backward_is_refused() -> None:
    model = Wide(lambda x: None, Exp)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(8, 64, requires_grad=True)
    elastic.backward(x, model)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        with torch.no_grad():
            model.blocks[1].w.weight.mul_(2)
        return out

    with pytest.raises(lull.LullError, match="edited in place"):
        elastic.backward(x, loss)
    elastic.close()


class Growing(nn.Module):
    """Appends to the cache that it is given, as a KV cache in train mode does."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        y = self.w(x)
        if cache is not None:
            cache.update(y)
        return y.relu()


class Cache:
    def __init__(self) -> None:
        self.layers: list[torch.Tensor] = []

    def update(self, y: torch.Tensor) -> None:
        self.layers.append(y)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Growing() for _ in range(3))
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Cache() if self.config.use_cache else None
        for block in self.blocks:
            x = block(x, cache=cache)
        return x.sum()


def test_kv_cache_argument_is_refused() -> None:
    model = Cached()
    config = model.config
    del model.config
    model.forward = lambda x: sum(b(x, cache=Cache()).sum() for b in model.blocks)  # type: ignore[method-assign]
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    with pytest.raises(lull.RuntimeRefusal, match=r"block blocks\.0: argument is a Cache.*use_cache=False"):
        elastic.backward(torch.randn(4, 64), model)
    assert config.use_cache
    elastic.close()


@pytest.mark.parametrize("held", [False, True], ids=["the model's own", "a model's that it holds"])
def test_use_cache_of_the_configuration_is_off_while_training_only(held: bool) -> None:
    inner = Cached()
    model: Any = nn.Sequential(inner) if held else inner
    model_config = inner.config
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    seen: list[bool] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        seen.append(model_config.use_cache)
        out: torch.Tensor = model(x)
        return out

    elastic.backward(torch.randn(4, 64), loss)
    assert not any(seen)
    assert model_config.use_cache
    elastic.close()


class Fickle(nn.Module):
    """Saves other tensors when it runs again, from `after` calls on. It counts where Lull does not look."""

    def __init__(self, after: int = 1) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.calls, self.after = [0], after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        y = self.w(x)
        return y.sigmoid() if self.calls[0] % 2 or self.calls[0] < self.after else torch.cat([y[:1].sigmoid(), y[1:]])


def test_block_that_comes_to_save_other_tensors_is_refused_when_it_runs_again() -> None:
    model = Wide(lambda x: None, lambda: Fickle(1 << 30))  # type: ignore[arg-type]
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(512, 64)
    elastic.backward(x, model)
    elastic.optimizer.zero_grad()
    for block in model.blocks:
        block.calls[0] = block.after = 2  # the first run is the third call
    model.between = drop_in_forward(elastic)
    with pytest.raises(lull.RuntimeRefusal, match=r"blocks\.2: run again it saved .*not deterministic"):
        elastic.backward(x, model)
    assert all(p.grad is None for p in model.parameters())
    elastic.close()


def test_model_that_changed_since_attach_is_refused_until_it_is_attached_again() -> None:
    def cast(model: nn.Module) -> None:
        model.double()

    def reshape(model: Any) -> None:
        model.head.weight.data, model.head.bias.data = torch.randn(4, 256), torch.randn(4)

    for change, seen in ((cast, r"torch\.float64 of shape"), (reshape, r"torch\.float32 of shape \(4, 256\)")):
        model = Mlp()
        elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
        x = torch.randn(8, 256)
        elastic.backward(x, lambda x, model=model: model(x).sum())
        elastic.optimizer.zero_grad()
        change(model)
        x = x.to(model.head.weight.dtype)
        with pytest.raises(
            lull.RuntimeRefusal,
            match=rf"model: a parameter is {seen} .*, want torch\.float32 of shape .* on cpu as when it was attached: "
            r"close\(\) and attach again after changing a model; nothing was trained",
        ):
            elastic.backward(x, lambda x, model=model: model(x).sum())
        elastic.close()
        again = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
        again.backward(x, lambda x, model=model: model(x).sum())
        again.close()


def test_error_of_the_users_own_that_speaks_of_memory_comes_through_at_once() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(8, 256)
    elastic.backward(x, lambda x: model(x).sum())
    tries: list[int] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        tries.append(len(x))
        raise RuntimeError("my database ran out of memory")

    with pytest.raises(RuntimeError, match="my database ran out of memory"):
        elastic.backward(x, loss)
    assert len(tries) == 1
    elastic.close()


def test_refusal_for_want_of_memory_names_the_allocators_error_as_its_cause() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted", budget=64 * MIB)
    x = torch.randn(8, 256)
    elastic.backward(x, lambda x: model(x).sum())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum() + torch.empty(1 << 55).sum()

    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"budget: a microbatch of 1 does not fit into 64\.0 MiB, want about [0-9.]+ MiB in budget= or "
        r"LULL_BUDGET \(a number without a unit is bytes\); the m",
    ) as refused:
        elastic.backward(x, loss)
    assert "DefaultCPUAllocator" in str(refused.value.__cause__)
    assert elastic.device.pool.in_use() == 0
    elastic.close()


class SelfEditing(nn.Module):
    """Edits its own input in place, which plain PyTorch allows here."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return self.w(x).sigmoid().mul(2.0)


def test_block_that_edits_its_input_is_never_emptied_and_stays_right() -> None:
    torch.manual_seed(1)
    model = Wide(lambda x: None, SelfEditing)
    x = torch.randn(512, 64)
    want = torch.autograd.grad(model(x.clone()), list(model.parameters()))
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    model.between = drop_in_forward(elastic)
    for _ in range(2):  # the first batch is cut small, until its memory is known
        elastic.optimizer.zero_grad()
        elastic.backward(x, lambda b: model(b.clone()))
    for p, g in zip(model.parameters(), want, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, g)
    assert set(elastic._stuck) == {"blocks.0", "blocks.1", "blocks.2"}
    elastic.close()


def test_bad_arguments_say_what_is_wanted() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(8, 256)
    with pytest.raises(lull.RuntimeRefusal, match="reduction: got 'max', want mean or sum"):
        elastic.backward(x, model, reduction="max")
    with pytest.raises(lull.RuntimeRefusal, match="no tensor with samples"):
        elastic.backward({"a": 3}, model)
    with pytest.raises(lull.RuntimeRefusal, match="want one number that depends on the model"):
        elastic.backward(x, model)
    with pytest.raises(lull.RuntimeRefusal, match=r"weights: got shape \(3,\), want \(8,\)"):
        elastic.backward(x, lambda x: model(x).sum(), weights=torch.ones(3))
    with pytest.raises(lull.RuntimeRefusal, match="Linear is no part of the model"):
        attach(model, elastic.optimizer, blocks=[nn.Linear(2, 2)], partition="trusted")
    elastic.close()


def test_an_error_in_the_loss_leaves_no_trace() -> None:
    torch.manual_seed(2)
    model = Gpt()
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    ids = torch.randint(0, 256, (8, 65))
    rec.elastic.backward(ids, text_loss(model))
    rec.elastic.optimizer.zero_grad()
    state = torch.get_rng_state()

    def broken(ids: torch.Tensor) -> torch.Tensor:
        text_loss(model)(ids)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rec.elastic.backward(ids, broken)
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert rec.elastic.device.pool.in_use() == 0
    rec.elastic.close()


def test_no_hook_scope_is_left_behind_however_a_forward_pass_ends() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(8, 256)
    elastic.backward(x, lambda x: model(x).sum())
    for error in (KeyError("mine"), KeyboardInterrupt("mine")):

        def act(module: nn.Module, args: object, error: BaseException = error) -> None:
            raise error

        handle = model.blocks[1][1].register_forward_pre_hook(act)
        with pytest.raises(type(error), match="mine"):
            elastic.backward(x, lambda x: model(x).sum())
        handle.remove()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    elastic.close()


def masked_loss(model: nn.Module) -> Any:
    """As people write it: a microbatch whose samples are all masked has a loss that depends on nothing."""

    def loss_fn(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not batch["mask"].any():
            return torch.zeros(())
        each = model(batch["x"]).square().mean(1)
        return (each * batch["mask"]).sum()

    return loss_fn


@pytest.mark.parametrize("tail", [0, 1])
def test_a_microbatch_without_a_loss_counts_as_zero_gradient(tail: int) -> None:
    torch.manual_seed(4)
    model = Mlp(drop=0.0)
    other = twin(model)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB, tail=tail)
    rec.elastic._next_size = lambda left: min(left, 2)  # type: ignore[method-assign]
    batch = {"x": torch.randn(8, 256), "mask": torch.tensor([0.0, 0, 1, 1, 0, 0, 1, 0])}
    loss = rec.elastic.backward(batch, masked_loss(model), reduction="sum")
    whole = masked_loss(other)(batch)
    whole.backward()
    assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    model.zero_grad()
    nothing = {"x": torch.randn(8, 256), "mask": torch.zeros(8)}
    with pytest.raises(
        lull.RuntimeRefusal, match="no sample of the batch has a loss that depends on the model, want one"
    ):
        rec.elastic.backward(nothing, masked_loss(model), reduction="sum")
    assert all(p.grad is None for p in model.parameters())
    rec.elastic.close()


def test_a_table_as_long_as_the_batch_is_refused_and_taken_whole_where_marked() -> None:
    """Class weights for eight classes, and eight samples."""
    torch.manual_seed(4)
    model = Mlp(drop=0.0)
    other = twin(model)
    batch = {"x": torch.randn(8, 256), "y": torch.randint(0, 8, (8,)), "per_class": torch.rand(8) + 0.5}

    def loss_of(model: nn.Module) -> Any:
        return lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"], weight=b["per_class"], reduction="sum")

    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    said = (
        r"fails on 2 of 8 samples \(RuntimeError: .*tensor 3 of those with 8 rows is left whole: .*lull.whole\(tensor"
    )
    with pytest.raises(lull.RuntimeRefusal, match=said):
        elastic.backward(batch, loss_of(model), reduction="sum")
    marked = {**batch, "per_class": lull.whole(batch["per_class"])}
    elastic._next_size = lambda left: min(left, 3)  # type: ignore[method-assign]
    elastic.backward(marked, loss_of(model), reduction="sum")
    loss_of(other)(batch).backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    with pytest.raises(lull.RuntimeRefusal, match=r"lull.whole: got a list, want a tensor; nothing was trained"):
        lull.whole([1.0])
    elastic.close()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_table_shorter_than_the_batch_is_whole_in_the_first_batchs_questions_too(size: int) -> None:
    """They are asked of four samples, of two and of one: a table of as many rows belongs to none of them."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, size))
    batch = {"x": torch.randn(12, 8), "y": torch.randint(0, size, (12,)), "per_class": torch.rand(size) + 0.5}
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    elastic.backward(
        batch,
        lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"], weight=b["per_class"], reduction="sum"),
        reduction="sum",
    )
    elastic.close()
