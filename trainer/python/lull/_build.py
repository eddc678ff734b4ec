"""Finds or makes the package's C libraries: built beside it by setup.py, or compiled once into the cache folder.

In a source tree the source is newer truth than a library built from an older one. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ARENA", "VMM", "Library", "library"]

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Library:
    """A C source of the package, what it includes, and the library that setup.py makes of it."""

    source: str
    built: str
    includes: tuple[str, ...] = ()


ARENA = Library("arena.c", "_native", ("capped.h",))
VMM = Library("vmm.c", "_cuda_native", ("capped.h", "vmm.h"))


def _found(name: str) -> Path | None:
    """A file of csrc in a source tree, or the copy that a wheel carries."""
    return next((p for p in (_HERE.parent / "csrc" / name, _HERE / name) if p.is_file()), None)


def _built(name: str) -> Path | None:
    """The library that setup.py built beside this file, if it was."""
    found = sorted(_HERE.glob(f"{name}*.so"))
    return found[0] if found else None


def cache_folder(env: Mapping[str, str]) -> Path:
    """LULL_CACHE, else a folder of the user's cache."""
    if env.get("LULL_CACHE"):
        return Path(env["LULL_CACHE"])
    return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lull"


def _compile(source: Path, texts: list[Path], env: Mapping[str, str]) -> str | None:
    """Compiles into the cache folder, keyed by the texts; None when it cannot."""
    compiler = env.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    key = hashlib.sha256(b"".join(text.read_bytes() for text in texts)).hexdigest()[:16]
    target = cache_folder(env) / f"{source.stem}-{key}.so"
    if target.is_file():
        return str(target)
    part = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [compiler, "-O2", "-fPIC", "-shared", "-pthread", "-o", str(part), str(source), "-ldl"],
            check=True,
            capture_output=True,
        )
        part.replace(target)
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(target)


def library(wanted: Library, env: Mapping[str, str]) -> str | None:
    """The path of a library, or None where it was not built and cannot be compiled."""
    texts = [found for name in (wanted.source, *wanted.includes) if (found := _found(name)) is not None]
    whole = len(texts) == 1 + len(wanted.includes)
    built = _built(wanted.built)
    if built and (not whole or built.stat().st_mtime >= max(text.stat().st_mtime for text in texts)):
        return str(built)
    made = _compile(texts[0], texts, env) if whole else None
    return made or (str(built) if built else None)
