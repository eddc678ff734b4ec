"""Hugging Face's Trainer, elastic.

    from lull.integrations.transformers import ElasticTrainer
    trainer = ElasticTrainer(model=model, args=args, train_dataset=data)

ElasticTrainer is Trainer with ElasticMixin before it; put the mixin before your own subclass just so. It attaches
at the first training step, when model and optimizer are prepared, and detaches when train() ends. Everything else
is the Trainer's: gradient accumulation, clipping, mixed precision, schedules, logging and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.attach import attach
from lull._torch.batch import batch_size, spread_copy
from lull._torch.elastic import Elastic
from lull._torch.separable import IGNORED, ask, places, tolerance
from lull._torch.shares import of_samples
from lull._torch.undo import Snapshot

try:
    import accelerate  # noqa: F401  # without it Trainer is a stub that raises when it is made
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        f"lull.integrations.transformers: {error}; want transformers and accelerate: pip install 'transformers[torch]'"
    ) from error

__all__ = ["ElasticMixin", "ElasticTrainer"]


class ElasticMixin:
    """Trains each batch of a Trainer through elastic.backward, in microbatches that fit the budget.

    `lull_options` are keyword arguments of lull.attach, such as budget= or blocks=.
    """

    def __init__(self, *args: Any, lull_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lull_options = dict(lull_options or {})
        self._parts: str | None = None
        self.elastic: Elastic | None = None
        """The handle while train() runs; None before its first step and after its end."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            elastic, self.elastic = self.elastic, None
            if elastic is not None:
                elastic.close()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's own, which tells its progress bar, TensorBoard, W&B and the rest; with Lull's figures beside
        each loss."""
        if self.elastic is not None and "loss" in logs:
            logs.update(self.elastic.shown())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of one batch; the Trainer's own does the same in one piece."""
        trainer: Any = self
        model.train()
        if callable(getattr(trainer.optimizer, "train", None)):
            trainer.optimizer.train()
        batch = dict(trainer._prepare_inputs(inputs))
        elastic = self._attached(model)
        scaled = _is_scaled(trainer, num_items_in_batch)
        by = 1 if scaled else trainer.current_gradient_accumulation_steps

        def loss_fn(part: dict[str, Any]) -> torch.Tensor:
            with trainer.compute_loss_context_manager():
                loss: torch.Tensor = trainer.compute_loss(model, dict(part), num_items_in_batch=num_items_in_batch)
            return loss if by == 1 else loss / by

        self._parts = self._parts or parts_of(elastic, loss_fn, batch)
        way = self._parts or ("sum" if scaled else "mean")
        if way == "sum":
            by *= elastic.ranks  # the Trainer counts on the mean over ranks that DistributedDataParallel takes
        told = WAYS[way](batch)
        loss = elastic.backward(batch, loss_fn, scaler=getattr(trainer.accelerator, "scaler", None), **told)
        if elastic.draining:  # the sidecar asked for it: a checkpoint, then the end
            trainer.control.should_save = trainer.control.should_training_stop = True
        return loss

    def _attached(self, model: torch.nn.Module) -> Elastic:
        if self.elastic is None:
            optimizer: Any = self.optimizer  # type: ignore[attr-defined]
            self.elastic = attach(model, optimizer, **self._lull_options)
            self._parts = None
        return self.elastic


def _is_scaled(trainer: Any, num_items_in_batch: Any) -> bool:
    """Whether the Trainer takes the loss as divided by the items of the whole step, and not once more by the
    number of accumulated batches; its own rule."""
    said = trainer.loss_is_scaled_for_ga
    if said is not None:
        return bool(said)
    counted = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    return counted or trainer.compute_loss_func is not None


def _counts(batch: dict[str, Any], first: int) -> dict[str, Any]:
    """Labels that count, by sample and token, from the position `first` on."""
    labels = batch["labels"]
    return {"weights": labels[:, first:] != IGNORED}


WAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "sum": lambda batch: {"reduction": "sum"},
    "mean over next labels": lambda batch: _counts(batch, 1),
    "mean over labels": lambda batch: _counts(batch, 0),
    "mean": lambda batch: {"reduction": "mean"},
}
"""What the loss of a batch may be of those of its parts, as elastic.backward wants it. A model that divides by
num_items_in_batch makes a sum; many take the argument and divide by the labels of their part all the same."""


def _make_uneven(labels: torch.Tensor) -> None:
    """Gives two samples fewer labels: unequal counts tell a mean over labels from one over samples, and a first
    label that does not count tells whether it would."""
    counted = (labels[0] != IGNORED).nonzero().flatten()
    if len(counted) >= 4:
        labels[0, counted[len(counted) // 2 :]] = IGNORED
    if int((labels[1] != IGNORED).sum()) >= 4:
        labels[1, 0] = IGNORED


def parts_of(elastic: Elastic, loss_fn: Callable[[dict[str, Any]], torch.Tensor], batch: dict[str, Any]) -> str | None:
    """Which of WAYS the loss goes, by asking it; None when one sample says nothing. Leaves no trace."""
    size = batch_size(batch)
    few = spread_copy(batch, places(size), size)
    size = batch_size(few)
    labels = few.get("labels")
    rows = isinstance(labels, torch.Tensor) and labels.dim() == 2 and not labels.is_floating_point()
    if rows and size > 1:
        _make_uneven(labels)
    before = Snapshot(elastic.device, elastic.model, None)
    with elastic.caches_off():
        asked = ask(elastic.model, loss_fn, few, size)
    before.restore()
    if asked is None:
        return None
    told = {name: way(few) for name, way in WAYS.items() if rows or "labels" not in name}
    off = {
        name: asked.off(how.get("reduction", "mean"), of_samples(how.get("weights"))[0]) for name, how in told.items()
    }
    best = min(off, key=lambda name: off[name])
    if off[best] <= tolerance(elastic.model):
        return best
    raise RuntimeRefusal(
        f"ElasticTrainer loss: that of {type(elastic.model).__name__} is neither the sum nor the mean, over samples or "
        "labels, of those of its parts, want one of these; pass compute_loss_func=, or override compute_loss; "
        "nothing was trained"
    )


class ElasticTrainer(ElasticMixin, Trainer):
    """Trainer with ElasticMixin."""
