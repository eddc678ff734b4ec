"""A Llama of random weights in one directory, made in a second without a hub."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 512
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 256, 4, 8, 4, 64, 512


def make_model(directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Writes config, weights and a byte-level tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    name = str(dtype).removeprefix("torch.")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1, "dtype": name,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    save_file(_weights(dtype), directory / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {"<s>": 0, "</s>": 1}
    for symbol in _byte_symbols():
        vocabulary[symbol] = len(vocabulary)
    while len(vocabulary) < VOCABULARY:
        vocabulary[f"<x{len(vocabulary)}>"] = len(vocabulary)
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    tokenizer = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def _weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(20)

    def matrix(rows: int, columns: int, scale: float = 0.08) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=random) * scale).to(dtype)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights[at + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[at + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        weights[at + "mlp.gate_proj.weight"] = matrix(INNER, HIDDEN)
        weights[at + "mlp.up_proj.weight"] = matrix(INNER, HIDDEN)
        weights[at + "mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        weights[at + "input_layernorm.weight"] = torch.ones(HIDDEN, dtype=dtype)
        weights[at + "post_attention_layernorm.weight"] = torch.ones(HIDDEN, dtype=dtype)
    return weights


def _byte_symbols() -> list[str]:
    """Returns the 256 symbols of GPT-2's byte-level alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]
