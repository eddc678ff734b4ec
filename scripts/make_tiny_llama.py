"""Write a tiny Llama with random weights and a byte-level tokenizer into a folder, with no model hub.

python scripts/make_tiny_llama.py DIR

3.2 million parameters in bfloat16: a real model for a real server, in seconds. Its answers are noise, so tests ask for
ignore_eos and judge events, not text. The same seed gives the same weights. Needs the environment of
`scripts/pyenv full`.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
VOCABULARY = 512
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


def tiny_llama() -> LlamaForCausalLM:
    """A Llama of 4 layers whose weights depend on SEED alone."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save_pretrained(out)
    model = tiny_llama()
    model.save_pretrained(out)
    print(f"make_tiny_llama: {sum(p.numel() for p in model.parameters())} parameters in {out}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
