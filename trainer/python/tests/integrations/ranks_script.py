"""Under torchrun: Hugging Face's own Trainer and the elastic one train one model in two ranks, to the same weights."""

import sys
import warnings
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from lull.integrations.transformers import ElasticTrainer

SETTINGS = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


def trained(kind: type[Trainer], folder: Path, **more: object) -> torch.nn.Module:
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, **SETTINGS))
    rows = torch.randint(0, 256, (96, 32))
    ends = torch.randint(4, 32, (96, 1))  # what comes after them is padding that no loss counts
    labels = torch.where(torch.arange(32) < ends, rows, -100)
    data = [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)]
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = kind(model=model, args=args, train_dataset=data, **more)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    print(kind.__name__, torch.distributed.get_rank(), losses, flush=True)
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    plain = trained(Trainer, folder)
    elastic = trained(ElasticTrainer, folder, lull_options={"socket": "", "budget": "64MiB"})
    gone = sum(float((a - b).norm()) ** 2 for a, b in zip(elastic.parameters(), plain.parameters(), strict=True))
    size = sum(float(b.norm()) ** 2 for b in plain.parameters())
    (folder / f"apart.{torch.distributed.get_rank()}").write_text(str((gone / size) ** 0.5))
    torch.distributed.barrier()  # none takes the store away from another that still leaves
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
