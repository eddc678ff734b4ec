"""Lightning's own Trainer and the elastic strategy train the same model to the same weights and the same logs."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset
from weather import MIB, in_small_parts, storm

from lull._errors import RuntimeRefusal
from lull.integrations._logged import Logged
from lull.integrations.lightning import ElasticStrategy

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's advice on workers and loggers
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # no arena in this process
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Model(L.LightningModule):
    """Logs a value by step and epoch, its largest, and an accuracy object."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = torch.nn.ModuleList(Block(16) for _ in range(3))
        self.head = torch.nn.Linear(16, 4)
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=4)
        self.more = more
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.right(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"far": logits.abs().max()}, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("right", self.right, on_step=False, on_epoch=True)
        return loss

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.seen.append(f"before {float(loss):.3f}")

    def on_after_backward(self) -> None:
        self.seen.append(f"after {float(sum(p.grad.abs().sum() for p in self.parameters())):.3f}")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Small(ElasticStrategy):
    """In parts of at most five samples, and with orders between and inside them."""

    parts: list[int]

    def _attached(self, module: Any) -> Any:
        fresh = self.elastic is None
        elastic, logged = super()._attached(module)
        if fresh:
            self.parts = in_small_parts(elastic)
        return elastic, logged

    def training_step(self, batch: Any, *rest: Any, **named: Any) -> torch.Tensor:
        elastic, _ = self._attached(self.lightning_module)
        if elastic.floor is None:  # no order comes before the floor is known
            return super().training_step(batch, *rest, **named)
        with storm(elastic):
            return super().training_step(batch, *rest, **named)


def data(size: int = 72) -> DataLoader[Any]:
    made = torch.Generator().manual_seed(2)
    x = torch.randn(size, 16, generator=made)
    return DataLoader(TensorDataset(x, (x[:, :4].argmax(1))), batch_size=16)  # the last batch is smaller


def trainer(folder: Path, strategy: Any = "auto", **more: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=2,
        strategy=strategy,
        log_every_n_steps=1,
        **quiet,
        **more,
    )


def options(**more: Any) -> dict[str, Any]:
    return {"socket": "", "budget": 64 * MIB, **more}


@pytest.mark.parametrize(
    "more",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"precision": "bf16-mixed"}],
    ids=["plain", "accumulation", "clipping", "bf16"],
)
def test_model_is_trained_and_logged_as_by_the_plain_trainer(tmp_path: Path, more: dict[str, Any]) -> None:
    theirs, ours = Model(), Model()
    plain = trainer(tmp_path, **more, enable_checkpointing=False)
    plain.fit(theirs, data())
    strategy = Small(lull_options=options())
    elastic = trainer(tmp_path, strategy, **more, enable_checkpointing=False)
    elastic.fit(ours, data())
    assert max(strategy.parts) <= 5
    assert sum(strategy.parts) == 2 * 72
    assert strategy.elastic is None, "detached when fit ended"
    loose = {"rtol": 0.05, "atol": 5e-3} if "precision" in more else {"rtol": 1e-4, "atol": 2e-6}
    for (name, a), b in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(a, b[1], **loose, msg=lambda text, name=name: f"{name}: {text}")
    got, want = elastic.callback_metrics, plain.callback_metrics
    assert {name for name in got if not name.startswith("lull_")} == want.keys()
    for name in want:
        torch.testing.assert_close(
            got[name], want[name], rtol=0.05 if "precision" in more else 1e-4, atol=1e-4, msg=name
        )
    assert elastic.global_step == plain.global_step
    if "precision" not in more:
        assert ours.seen == theirs.seen, "hooks around backward see the same losses and gradients"


def test_progress_bar_and_loggers_show_budget_and_handovers(tmp_path: Path) -> None:
    """What a module logs goes to the bar (tqdm) where it is said to, and to TensorBoard and W&B."""
    strategy = Small(lull_options=options())
    elastic = trainer(tmp_path, strategy, enable_checkpointing=False)
    elastic.fit(Model(), data())
    assert float(elastic.logged_metrics["lull_budget_mib"]) in (24.0, 64.0)
    assert float(elastic.logged_metrics["lull_handovers"]) > 0
    assert 1 <= float(elastic.logged_metrics["lull_microbatch"]) <= 5
    assert {name for name in elastic.progress_bar_metrics if "lull" in name} == {"lull_budget_mib", "lull_handovers"}


def test_checkpoint_of_one_is_resumed_by_the_other(tmp_path: Path) -> None:
    theirs, ours = Model(), Model()
    whole = trainer(tmp_path / "whole")
    whole.fit(theirs, data())
    first = trainer(tmp_path / "first", Small(lull_options=options()))
    first.fit_loop.max_epochs = 1
    first.fit(ours, data())
    path = tmp_path / "one.ckpt"
    first.save_checkpoint(path)
    rest = Model()
    trainer(tmp_path / "rest", Small(lull_options=options())).fit(rest, data(), ckpt_path=path, weights_only=False)
    for a, b in zip(rest.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6)


def test_drained_job_ends_after_its_batch(tmp_path: Path) -> None:
    class Drained(Small):
        def training_step(self, *args: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*args, **named)
            assert self.elastic is not None
            self.elastic.drain()
            return loss

    elastic = trainer(tmp_path, Drained(lull_options=options()), enable_checkpointing=False)
    elastic.fit(Model(), data())
    assert elastic.global_step == 2  # it is seen in the batch after


class Positional(Model):
    """Says all that self.log takes by its place, to the size that weighs a batch in the epoch's mean."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("again", loss, False, False, False, True, "mean", False, False, None, True, 1)
        return loss


def test_log_by_place_is_the_plain_trainers_too(tmp_path: Path) -> None:
    theirs, ours = Positional(), Positional()
    plain = trainer(tmp_path, enable_checkpointing=False)
    plain.fit(theirs, data())
    elastic = trainer(tmp_path, Small(lull_options=options()), enable_checkpointing=False)
    elastic.fit(ours, data())
    torch.testing.assert_close(elastic.callback_metrics["again"], plain.callback_metrics["again"], rtol=1e-4, atol=1e-4)


class ByHand(Model):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnBackward(Model):
    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class Skips(Model):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class Odd(Model):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("odd", loss, reduce_fx=torch.median)
        return loss


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ByHand, "ByHand optimizes by hand, want elastic.backward in its training_step"),
        (OwnBackward, "OwnBackward has a backward of its own, which would be left out"),
        (Skips, "returned NoneType without a loss, want a loss for every part of a batch"),
        (Odd, "reduce_fx is .*median.*, want mean, sum, min or max"),
    ],
)
def test_what_cannot_go_in_parts_is_refused_with_a_sentence(tmp_path: Path, kind: Any, said: str) -> None:
    model = kind()
    before = copy.deepcopy(dict(model.named_parameters()))
    elastic = trainer(tmp_path, Small(lull_options=options()), enable_checkpointing=False)
    with pytest.raises(RuntimeRefusal, match=said):
        elastic.fit(model, data())
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, before[name])


@pytest.mark.parametrize("name", ["tail", "tail_tokens"])
def test_a_tail_in_chunks_is_refused(tmp_path: Path, name: str) -> None:
    elastic = trainer(tmp_path, Small(lull_options=options(**{name: 1})), enable_checkpointing=False)
    with pytest.raises(
        RuntimeRefusal, match=f"lull_options has {name}=1, want none: training_step would run, and log, once"
    ):
        elastic.fit(Model(), data())


def test_predictions_that_a_metric_keeps_are_put_back_and_not_copied() -> None:
    """A list state grows over an epoch: copying it for each part would cost more with each."""

    class Keeps(Model):
        def __init__(self) -> None:
            super().__init__()
            self.all = torchmetrics.CatMetric()

    module = Keeps()
    module.all.update(torch.arange(3.0))
    kept = module.all.value[0]
    logged = Logged(module)
    for counts in (False, True):
        with logged.of_part():
            module.all.update(torch.arange(2.0))
            module.right.update(torch.eye(4), torch.arange(4))
        if counts:
            logged.committed(2)
    with logged.of_part():
        module.all.update(torch.arange(5.0))
    logged._put_back()
    assert module.all.value[0] is kept
    assert [len(v) for v in module.all.value] == [3, 2]
    assert int(module.right.tp.sum()) == 4
    assert module.right._update_count == 1


SCRIPT = """
import sys, torch, lightning.pytorch as L
from torch.utils.data import DataLoader, TensorDataset
from lull.integrations.lightning import ElasticStrategy

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    def training_step(self, batch, i):
        x, = batch
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x.square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16)
L.Trainer(default_root_dir=sys.argv[1], accelerator="cpu", max_epochs=1, strategy=ElasticStrategy()).fit(Model(), data)
"""


def test_script_trains_alone_under_lull_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "lull.run", str(script), str(tmp_path)],
        env={**os.environ, "LULL_SOCKET": "", "LULL_BUDGET": "64MiB"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "loss.backward()" not in done.stderr, done.stderr[-3000:]
