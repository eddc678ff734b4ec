"""The errors of this package.

LullVLLMError
├── PageError       a shared page cannot be trusted: short, foreign, torn or of another version
├── LayoutError     the KV tensors are laid out in a way that cannot be given back page by page
└── NameTakenError  another engine holds the instance name
"""

from __future__ import annotations


class LullVLLMError(Exception):
    """Base of every error that this package raises."""


class PageError(LullVLLMError):
    """A shared page cannot be trusted; the text says what was seen."""


class LayoutError(LullVLLMError):
    """The KV tensors are laid out in a way that cannot be given back page by page."""


class NameTakenError(LullVLLMError):
    """Another running engine holds the instance name."""
