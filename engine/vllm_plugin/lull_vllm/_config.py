"""The settings, all from the environment, since vLLM hands its plugins nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ._errors import LullVLLMError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Config:
    """What the user may set; docs/VLLM.md explains each.

    directory: where pages and sockets lie; private to the user, in memory by default.
    name: one engine's files in it; give each engine of a machine its own.
    initial_bound: bytes a rank that the engine may map before a sidecar spoke; None is the pool.
    lease_s: how long a silent sidecar's bound counts, where it gave none itself. Shorter gives
      memory back to an orphaned engine sooner, longer rides out a sidecar's restart.
    margin: bytes of the machine that the return to the whole pool leaves alone.
    """

    enabled: bool
    directory: Path
    name: str
    initial_bound: int | None
    lease_s: float
    margin: int

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        name = environ.get("LULL_VLLM_NAME", "vllm")
        if not _NAME.fullmatch(name):
            raise LullVLLMError(f"LULL_VLLM_NAME: got {name!r}, want letters, digits, . _ -")
        directory = environ.get("LULL_VLLM_DIR", f"/dev/shm/lull-{os.getuid()}")
        initial = environ.get("LULL_VLLM_INITIAL_BOUND")
        return cls(
            enabled=environ.get("LULL_VLLM", "1") not in ("0", "off", "false"),
            directory=Path(directory),
            name=name,
            initial_bound=None if initial in (None, "") else _bytes(initial, "INITIAL_BOUND"),
            lease_s=_seconds(environ.get("LULL_VLLM_LEASE_S", "10")),
            margin=_bytes(environ.get("LULL_VLLM_MARGIN", "512MiB"), "MARGIN"),
        )

    def path(self, suffix: str) -> Path:
        """Returns the file of this engine with that suffix."""
        return self.directory / f"{self.name}.{suffix}"


def prepare_directory(directory: Path) -> None:
    """Makes the directory, and refuses one that another user could write."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = directory.stat()
    if seen.st_uid != os.getuid() or seen.st_mode & 0o022:
        raise LullVLLMError(
            f"{directory}: owner {seen.st_uid}, mode {seen.st_mode & 0o777:o}; "
            f"want owner {os.getuid()} and no write for others"
        )


def _bytes(text: str | None, key: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB)?\s*", text or "")
    if match is None:
        raise LullVLLMError(f"LULL_VLLM_{key}: got {text!r}, want bytes such as 512MiB")
    return round(float(match[1]) * _UNITS[match[2] or "B"])


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86400:
        raise LullVLLMError(f"LULL_VLLM_LEASE_S: got {text!r}, want seconds in (0, 86400)")
    return value
