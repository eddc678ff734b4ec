"""Shows Lull's log lines on stderr where the script has set up no logging of its own."""

from __future__ import annotations

import logging
import sys
from typing import Final

__all__ = ["LEVELS", "show"]

LEVELS: Final = ("debug", "info", "warning", "error")

_logger = logging.getLogger("lull")


class _Fallback(logging.Handler):
    """Writes to the stderr of the moment, and nothing once the script gave the root logger a handler:
    that one has the line already."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr, flush=True)


def show(level: str) -> None:
    """Shows lines of `level` (one of LEVELS) and above; "" leaves logging alone. Harmless when repeated."""
    if not level:
        return
    if _logger.level == logging.NOTSET:
        _logger.setLevel(level.upper())
    if not any(isinstance(h, _Fallback) for h in _logger.handlers):
        handler = _Fallback()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _logger.addHandler(handler)
