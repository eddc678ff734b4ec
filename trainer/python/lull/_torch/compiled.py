"""Modules that are no longer Python: what torch.compile and torch.jit made of them cannot be taken apart."""

from __future__ import annotations

import sys
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.segments import Segment


def keep_out() -> None:
    """Tells torch.compile to leave Lull's own code alone: hooks run inside compiled modules. Harmless when repeated."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if hasattr(rules, "add") and hasattr(rules, "check_file") and not rules.check_file(__file__).skipped:
        rules.add("lull")


def refuse_compiled(model: torch.nn.Module, segments: list[Segment]) -> None:
    """Raises RuntimeRefusal where a block could not be run again by itself, or its state not be put back."""
    blocks = {id(segment.module) for segment in segments}
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    for path, module in model.named_modules():
        name = path or "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise RuntimeRefusal(
                f"attach model: {name} is TorchScript (torch.jit), want Python modules: buffers and attributes of it "
                "cannot be put back; nothing is attached"
            )
        in_place = module._compiled_call_impl is not None
        if in_place and id(module) in blocks:
            raise RuntimeRefusal(
                f"attach blocks: {name} was compiled in place (its compile()), want torch.compile(block) put in its "
                "place, or blocks= without it: run again by itself it would be the block that is not compiled; "
                "nothing is attached"
            )
        if (in_place or isinstance(module, wrapper)) and any(
            id(inner) in blocks for inner in module.modules() if inner is not module
        ):
            raise RuntimeRefusal(
                f"attach model: {name} is compiled around its blocks (torch.compile), want its blocks compiled one by "
                "one (blocks[i] = torch.compile(blocks[i])), or blocks=[], with which nothing is emptied: a block "
                "inside it cannot be run again by itself; nothing is attached"
            )
