"""Write a tiny Llama with random weights and a byte-level tokenizer into a folder, with no model hub.

python scripts/make_tiny_llama.py DIR [--layers 4] [--hidden 256] [--heads 8] [--kv-heads 4] [--dtype bfloat16]

3.2 million parameters: a real model for a real server, in seconds. Its answers are noise, so tests ask for
ignore_eos and judge events, not text. The same seed gives the same weights. More heads make its KV cache larger:
2 x layers x kv-heads x 32 x the bytes of the dtype, a token. Needs the environment of `scripts/pyenv full`.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
VOCABULARY = 512
HEAD_DIM = 32
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, three special ones, and unused ones up to VOCABULARY."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<s>", "</s>", *alphabet]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    for i in range(len(tokens), VOCABULARY):
        vocabulary[f"<unused{i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT_TEMPLATE,
    )


@dataclass(frozen=True)
class Shape:
    """What can be chosen of the model."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    dtype: str = "bfloat16"


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The options of a Shape."""
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--hidden", type=int, default=Shape.hidden, help="hidden size: computing, not KV")
    parser.add_argument("--heads", type=int, default=Shape.heads, help="attention heads")
    parser.add_argument("--kv-heads", type=int, default=Shape.kv_heads, help="key and value heads")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default=Shape.dtype)


def shape_of(args: argparse.Namespace) -> Shape:
    """The Shape that the options say."""
    return Shape(args.layers, args.hidden, args.heads, args.kv_heads, args.dtype)


def tiny_llama(shape: Shape) -> LlamaForCausalLM:
    """A Llama whose weights depend on SEED and its shape alone."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 43 // 16,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        dtype=shape.dtype,
    )
    return LlamaForCausalLM(config).to(getattr(torch, shape.dtype))


def write(out: Path, shape: Shape) -> None:
    """Model and tokenizer into one folder."""
    out.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save_pretrained(out)
    model = tiny_llama(shape)
    model.save_pretrained(out)
    print(f"make_tiny_llama: {sum(p.numel() for p in model.parameters())} parameters in {out}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    add_shape(parser)
    args = parser.parse_args()
    write(args.out, shape_of(args))


if __name__ == "__main__":
    main()
