"""Lightning's Trainer, elastic.

    from lull.integrations.lightning import ElasticStrategy
    trainer = L.Trainer(strategy=ElasticStrategy())

The strategy runs training_step on microbatches that fit the budget and hands Lightning the gradient of the whole batch.
It attaches at the first training batch and detaches when fit ends. Everything else is Lightning's: accumulation,
clipping, mixed precision, schedules, logging and checkpoints. One process, one device, automatic optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.attach import attach
from lull._torch.batch import batch_size
from lull._torch.elastic import Elastic
from lull.integrations._logged import Logged

try:
    import lightning.pytorch as lightning
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ImportError(f"lull.integrations.lightning: {error}; want lightning: pip install lightning") from error

__all__ = ["ElasticStrategy"]

_ON_THE_BAR = ("lull_budget_mib", "lull_handovers")
"""Of Elastic.shown: all of it goes to loggers, which have room for it."""


class ElasticStrategy(SingleDeviceStrategy):
    """SingleDeviceStrategy whose training batches go through elastic.backward.

    `device` is where the model trains, the CPU where none is named: Lightning's own `accelerator` does not choose it.
    `reduction` is what training_step's loss does over its samples, "mean" or "sum"; `weights`, if given, makes of a
    batch one number a sample where the loss divides by their sum (labels that count, say). `lull_options` are keyword
    arguments of lull.attach, such as budget= or blocks=.
    """

    strategy_name = "lull"

    def __init__(
        self,
        device: Any = "cpu",
        *args: Any,
        reduction: str = "mean",
        weights: Callable[[Any], torch.Tensor] | None = None,
        lull_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device, *args, **kwargs)
        self._reduction, self._weights = reduction, weights
        self._lull_options = dict(lull_options or {})
        self._gradients: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._logged: Logged | None = None
        self.elastic: Elastic | None = None
        """The handle while fit runs; None before its first batch and after its end."""

    def training_step(self, batch: Any, *rest: Any, **named: Any) -> torch.Tensor:
        """The batch's loss, with the gradient kept for backward: Lightning empties .grad in between."""
        module: Any = self.lightning_module
        elastic, logged = self._attached(module)
        trainer = module.trainer
        steps = trainer.accumulate_grad_batches
        fresh = trainer.fit_loop.batch_idx % steps == 0  # Lightning's own rule for emptying .grad
        if fresh:
            module.zero_grad(set_to_none=True)

        def loss_fn(part: Any) -> torch.Tensor:
            with logged.of_part(), self.precision_plugin.train_step_context():
                loss = _loss_of(module.training_step(part, *rest, **named))
            return loss if steps == 1 else loss / steps

        size = batch_size(batch)
        weights = None if self._weights is None else self._weights(batch)
        scaler = getattr(self.precision_plugin, "scaler", None)
        with logged.of_batch(size):
            loss = elastic.backward(batch, loss_fn, reduction=self._reduction, weights=weights, scaler=scaler)
        for name, value in elastic.shown().items():  # to the progress bar, TensorBoard, W&B and the rest
            module.log(name, float(value), prog_bar=name in _ON_THE_BAR, on_step=True, on_epoch=False, batch_size=size)
        if fresh:
            self._gradients = [(p, p.grad) for p in module.parameters() if p.grad is not None]
            for p, _ in self._gradients:
                p.grad = None
        if elastic.draining:  # the sidecar asked for it: the end, after which Lightning's callbacks save
            trainer.should_stop = True
        whole: torch.Tensor = (loss * steps).requires_grad_()
        return whole

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Puts the gradient in its place, between the hooks that Lightning calls around its own backward."""
        module: Any = self.lightning_module
        self.pre_backward(closure_loss)
        self.precision_plugin.pre_backward(closure_loss.detach(), module)
        gradients, self._gradients = self._gradients, []
        for p, gradient in gradients:
            p.grad = gradient
        closure_loss = self.precision_plugin.post_backward(closure_loss, module)
        self.post_backward(closure_loss)
        return closure_loss

    def teardown(self) -> None:
        elastic, self.elastic, self._logged = self.elastic, None, None
        if elastic is not None:
            elastic.close()
        super().teardown()

    def _attached(self, module: Any) -> tuple[Elastic, Logged]:
        if self.elastic is None or self._logged is None:
            _refuse(module)
            for name in ("tail", "tail_tokens"):
                if self._lull_options.get(name):
                    raise RuntimeRefusal(
                        f"ElasticStrategy: lull_options has {name}={self._lull_options[name]!r}, want none: "
                        "training_step would run, and log, once more for each chunk of a part; nothing was trained"
                    )
            self._logged = Logged(module)
            self.elastic = attach(module, self.optimizers[0], **self._lull_options)
            ran, logged = self.elastic.stats.ran, self._logged

            def counted(samples: int, took: float) -> None:
                logged.committed(samples)
                ran(samples, took)

            self.elastic.stats.ran = counted  # type: ignore[method-assign]
        return self.elastic, self._logged


def _loss_of(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, torch.Tensor):
        raise RuntimeRefusal(
            f"ElasticStrategy training_step: returned {type(output).__name__} without a loss, want a loss for every "
            "part of a batch: a part cannot be left out; nothing was trained"
        )
    return loss


def _refuse(module: Any) -> None:
    """What cannot be done in parts of a batch."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise RuntimeRefusal(
            f"ElasticStrategy: {name} optimizes by hand, want elastic.backward in its training_step (lull.attach), and "
            "no strategy; nothing was trained"
        )
    if type(module).backward is not lightning.LightningModule.backward:
        raise RuntimeRefusal(
            f"ElasticStrategy: {name} has a backward of its own, which would be left out, want none; nothing was "
            "trained"
        )
