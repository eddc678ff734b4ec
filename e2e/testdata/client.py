"""One request by the OpenAI client; prints a JSON line for every event and one at the end.

python client.py BASE_URL MODEL chat|completions stream|whole MAX_TOKENS PROMPT

Times are Unix microseconds. An event counts as generated as Lull counts it: it carries text, or it has a choice without
a role and without a reason to finish (an engine with random weights decodes to empty text).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from openai import OpenAI


def emit(**fields: object) -> None:
    """One JSON line."""
    print(json.dumps(fields), flush=True)


def text_of(choice: Any) -> str:
    """The text of one choice, of a chat or a completion, in a stream or whole."""
    part = getattr(choice, "delta", None) or getattr(choice, "message", None)
    return (part.content if part is not None else choice.text) or ""


def generated(chunk: Any) -> bool:
    """Whether an event of a stream marks a step of decoding."""
    if not chunk.choices:
        return False
    choice = chunk.choices[0]
    role = getattr(getattr(choice, "delta", None), "role", None)
    return bool(text_of(choice)) or (role is None and choice.finish_reason is None)


def main() -> None:
    base, model, endpoint, how, max_tokens, prompt = sys.argv[1:]
    client = OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": int(max_tokens),
        "temperature": 0,
        "seed": 1,
        "extra_body": {"ignore_eos": True},
    }
    if endpoint == "chat":
        options["messages"] = [{"role": "user", "content": prompt}]
        create: Any = client.chat.completions.create
    else:
        options["prompt"] = prompt
        create = client.completions.create
    if how == "whole":
        answer = create(**options)
        choice = answer.choices[0]
        emit(text=text_of(choice), tokens=answer.usage.completion_tokens, finish=choice.finish_reason)
        return
    text, finish, tokens = "", "", 0
    for chunk in create(**options, stream=True, stream_options={"include_usage": True}):
        now = time.time_ns() // 1000
        if generated(chunk):
            emit(t_us=now)
        if chunk.choices:
            text += text_of(chunk.choices[0])
            finish = chunk.choices[0].finish_reason or finish
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    emit(text=text, tokens=tokens, finish=finish)


if __name__ == "__main__":
    main()
