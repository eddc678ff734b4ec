"""What the loops train: a classifier, and a small language model under low-rank adapters; and their batches."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

IGNORED = -100


class Block(torch.nn.Module):
    """A residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


def classifier() -> torch.nn.Module:
    """Of rows of 16 numbers, in 4 classes."""
    return torch.nn.Sequential(*(Block(16) for _ in range(3)), torch.nn.Linear(16, 4))


def batches(count: int = 6, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same in each process."""
    draw = torch.Generator().manual_seed(2)
    rows = [torch.randn(size, 16, generator=draw) for _ in range(count)]
    return [(x, x[:, :4].argmax(1)) for x in rows]


def adapted() -> torch.nn.Module:
    """A frozen Llama with LoRA beside its attention's projections."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **shape))
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    found: torch.nn.Module = get_peft_model(model, lora)
    return found


def texts(count: int = 4, size: int = 12, length: int = 24) -> list[dict[str, torch.Tensor]]:
    """Batches of rows of different lengths; the same in each process."""
    draw = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        ids = torch.randint(0, 256, (size, length), generator=draw)
        ends = torch.randint(4, length, (size, 1), generator=draw)
        made.append({"input_ids": ids, "labels": torch.where(torch.arange(length) < ends, ids, IGNORED)})
    return made
