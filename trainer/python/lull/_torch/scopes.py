"""What an exception of a signal's handler may leave behind in PyTorch.

Python runs a handler between any two steps, also inside the first or the last line of a `with`: what such a scope set
then stays set. Gradients that are off, or a pack hook of a microbatch that is over, would go on for the whole process.
"""

from __future__ import annotations

from typing import Any

import torch


def _top() -> Any:
    """The innermost pack hook for saved tensors, or None."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top[0] if top is not None else None


class Scopes:
    """Gradient mode and the hooks for saved tensors, as they are when it is made."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._top = _top()

    def restore(self) -> None:
        """Puts both back. Of hooks only Lull's own are taken off."""
        if torch.is_grad_enabled() != self._grad:
            torch._C._set_grad_enabled(self._grad)
        while (top := _top()) is not None and top is not self._top and _ours(top):
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _ours(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__module__.startswith("lull.")
