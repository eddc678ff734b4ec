"""Trains a tiny language model with Hugging Face's Trainer."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(1)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
)
rows = torch.randint(0, 256, (64, 32))
data = [{"input_ids": row, "labels": row} for row in rows]

args = TrainingArguments(sys.argv[1], per_device_train_batch_size=16, max_steps=4, report_to="none", use_cpu=True)
trainer = Trainer(model=model, args=args, train_dataset=data)
result = trainer.train()
print("loss", result.training_loss)
