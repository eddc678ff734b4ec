"""Hugging Face's own Trainer and the elastic one train the same model, made on the spot, to the same weights."""

from __future__ import annotations

import copy
import difflib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)
from weather import MIB, in_small_parts, storm

import lull
from lull.integrations.transformers import ElasticMixin, ElasticTrainer

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]


def llama() -> torch.nn.Module:
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def texts(count: int = 96, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Rows whose ends are padding that no loss counts, of different lengths."""
    g = torch.Generator().manual_seed(2)
    rows = torch.randint(0, 256, (count, length), generator=g)
    ends = torch.randint(4, length, (count, 1), generator=g)
    labels = torch.where(torch.arange(length) < ends, rows, -100)
    return [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    given = {"per_device_train_batch_size": 16, "max_steps": 3, "learning_rate": 1e-3, "logging_steps": 1, **more}
    return TrainingArguments(
        str(folder), report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True, **given
    )


def options(**more: Any) -> dict[str, Any]:
    return {"socket": "", "budget": 64 * MIB, **more}


class Small(ElasticTrainer):
    """In microbatches of at most five samples, and with orders between and inside them."""

    parts: list[int]

    def _attached(self, model: torch.nn.Module) -> lull.Elastic:
        fresh = self.elastic is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no arena in this process
            elastic = super()._attached(model)
        if fresh:
            self.parts = in_small_parts(elastic)
        return elastic

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        elastic = self._attached(model)
        if elastic.floor is None:  # no order comes before the floor is known
            return super().training_step(model, inputs, num_items_in_batch)
        with storm(elastic):
            return super().training_step(model, inputs, num_items_in_batch)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trained_alike(
    model: torch.nn.Module,
    data: Any,
    folder: Path,
    more: dict[str, Any],
    tail: dict[str, int] | None = None,
    **extra: Any,
) -> Small:
    other = copy.deepcopy(model)
    plain = Trainer(model=other, args=arguments(folder, **more), train_dataset=data, **extra)
    plain.train()
    told = options(**tail or {})
    ours = Small(model=model, args=arguments(folder, **more), train_dataset=data, lull_options=told, **extra)
    ours.train()
    assert max(ours.parts) <= 5
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-3, abs=2e-4)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert ours.elastic is None, "detached when training ended"
    return ours


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"max_grad_norm": 0.1, "weight_decay": 0.1},
        {"gradient_checkpointing": True},
    ],
    ids=["plain", "accumulation", "clipping", "checkpointing"],
)
def test_language_model_is_trained_as_by_the_plain_trainer(tmp_path: Path, more: dict[str, Any]) -> None:
    """SGD, so that a difference in a gradient stays one in the weights."""
    trained_alike(llama(), texts(), tmp_path, {"optim": "sgd", "learning_rate": 0.5, **more})


@pytest.mark.parametrize("tail", [{"tail": 2}, {"tail": 1, "tail_tokens": 7}], ids=["samples", "tokens"])
def test_language_model_whose_tail_goes_in_chunks_is_trained_alike(tmp_path: Path, tail: dict[str, int]) -> None:
    """Its loss is inside its forward pass."""
    more = {"optim": "sgd", "learning_rate": 0.5, "gradient_accumulation_steps": 2}
    trained_alike(llama(), texts(), tmp_path, more, tail)


def adapted(**more: Any) -> torch.nn.Module:
    """The language model under peft's low-rank adapters: base weights are frozen, the adapters' B start at zero."""
    torch.manual_seed(7)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **more)
    model: torch.nn.Module = get_peft_model(llama(), config)
    return model


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ({}, {}),
        ({"modules_to_save": ["lm_head"]}, {}),
        ({"use_dora": True}, {}),
        ({}, {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}),
    ],
    ids=["lora", "with a trained head", "dora", "checkpointing"],
)
def test_adapters_of_peft_are_trained_as_by_the_plain_trainer(
    tmp_path: Path, shape: dict[str, Any], more: dict[str, Any]
) -> None:
    model = adapted(**shape)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    started = {name: p.clone() for name, p in model.named_parameters() if p.requires_grad}
    ours = trained_alike(model, texts(), tmp_path, {"optim": "sgd", "learning_rate": 0.5, **more})
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], p) for name, p in frozen.items()), "what is frozen stays"
    assert all(not torch.equal(after[name], p) for name, p in started.items()), "every adapter moves"
    assert len(ours.parts) > 3


def bert(kind: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(BertConfig(vocab_size=64, num_labels=4, **shape, **still))


def test_classifier_whose_loss_is_a_mean_over_samples_is_trained_alike(tmp_path: Path) -> None:
    rows = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(5))
    data = [{"input_ids": row, "labels": int(row[0]) % 4} for row in rows]
    more = {"optim": "sgd", "learning_rate": 0.5, "gradient_accumulation_steps": 2}
    trained_alike(bert(BertForSequenceClassification), data, tmp_path, more)


def token_data() -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row % 4} for row in rows]


def test_token_classifier_that_divides_by_its_own_labels_is_trained_alike(tmp_path: Path) -> None:
    """It takes num_items_in_batch and divides by the labels of its part all the same."""
    data = token_data()
    for i, row in enumerate(data):
        row["labels"] = torch.where(torch.arange(12) < 3 + i % 9, row["labels"], -100)
    more = {"optim": "sgd", "learning_rate": 0.5}
    trained_alike(bert(BertForTokenClassification), data, tmp_path, more)


def test_loss_that_compares_samples_is_refused_with_what_to_do(tmp_path: Path) -> None:
    class Contrast(Small):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            out = model(input_ids=inputs["input_ids"]).logits[:, 0]
            return F.cross_entropy(out @ out.T, torch.arange(len(out)))

    model = llama()
    ours = Contrast(model=model, args=arguments(tmp_path), train_dataset=texts(), lull_options=options())
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"ElasticTrainer loss: that of LlamaForCausalLM is neither the sum nor the mean, over samples or labels, "
        r"of those of its parts, want one of these; pass compute_loss_func=.*; nothing was trained",
    ):
        ours.train()
    assert ours.elastic is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_own_loss_function_makes_it_right(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        return F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch

    more = {"optim": "sgd", "learning_rate": 0.5}
    trained_alike(bert(BertForTokenClassification), token_data(), tmp_path, more, compute_loss_func=loss)


def test_prompts_that_do_not_count_are_no_obstacle(tmp_path: Path) -> None:
    """As in instruction tuning: labels begin late, at another place in each row."""
    data = texts()
    for i, row in enumerate(data):
        row["labels"] = torch.where(torch.arange(32) < 10 + i % 15, -100, row["input_ids"])
    trained_alike(llama(), data, tmp_path, {"optim": "sgd", "learning_rate": 0.5})


def test_drain_saves_a_checkpoint_and_ends_training(tmp_path: Path) -> None:
    class Drained(Small):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss = super().training_step(*args, **kwargs)
            if self.state.global_step == 1 and self.elastic is not None and not self.elastic.draining:
                self.elastic.drain()
                return super().training_step(*args, **kwargs)
            return loss

    args = arguments(tmp_path, max_steps=50)
    trainer = Drained(model=llama(), args=args, train_dataset=texts(), lull_options=options())
    trainer.train()
    assert trainer.state.global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()


def test_progress_bar_and_loggers_show_budget_and_handovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the Trainer logs goes to its bar (tqdm) and to TensorBoard and W&B by one way, on_log."""
    args = arguments(tmp_path)
    args.disable_tqdm = False
    trainer = Small(model=llama(), args=args, train_dataset=texts(), lull_options=options())
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert all(entry["lull_budget_mib"] in (24, 64) and entry["lull_microbatch"] in range(1, 6) for entry in logged)
    assert logged[-1]["lull_handovers"] > 0
    shown = capsys.readouterr()
    assert "'lull_budget_mib': " in shown.out + shown.err
    assert f"'lull_handovers': {logged[-1]['lull_handovers']}" in shown.out + shown.err


def test_mixin_goes_before_a_subclass_of_ones_own(tmp_path: Path) -> None:
    class Mine(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    class MineElastic(ElasticMixin, Mine):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        ours = MineElastic(
            model=llama(), args=arguments(tmp_path, max_steps=1), train_dataset=texts(), lull_options=options()
        )
        ours.train()
    plain = Trainer(model=llama(), args=arguments(tmp_path, max_steps=1), train_dataset=texts())
    plain.train()
    assert losses(ours)[0] == pytest.approx(2 * losses(plain)[0], rel=1e-4)


def changed() -> list[str]:
    before, after = ((HERE / name).read_text().splitlines() for name in ("plain_script.py", "elastic_script.py"))
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---") and line.strip("+-")]


def test_five_lines_are_changed_at_most_and_the_documentation_shows_them() -> None:
    assert 0 < len([line for line in changed() if line[0] == "+"]) <= 5
    document = (PACKAGE.parents[1] / "docs" / "TRAINING.md").read_text()
    for line in changed():
        assert f"\n{line}\n" in document, line


@pytest.mark.parametrize("script", ["plain_script.py", "elastic_script.py"])
def test_script_runs_and_trains_alone_without_a_sidecar(tmp_path: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lull.run", str(HERE / script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rsplit("loss ", 1)[1]) > 0
