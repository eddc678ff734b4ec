"""`python -m lull.run script.py args...`: sets what must be set before a process starts.

It preloads the native arena, makes glibc return large blocks at once and ask for huge pages, shows what Lull
logs (LULL_LOG=info unless set), and then becomes the script's own process. OMP and MKL settings are left alone.
Without a built arena it compiles csrc/arena.c once into the cache folder; without a compiler it says so and
goes on with malloc alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from lull._arena import ENV, UNATTACHED, built_library

__all__ = ["environment", "locate", "main"]

_USAGE = "usage: python -m lull.run [-m module | script.py | -c code] [args...]"
_THRESHOLD = "262144"


def _source() -> Path | None:
    """csrc/arena.c of a source tree, or the copy that a wheel carries."""
    here = Path(__file__).resolve().parent
    return next((p for p in (here.parent / "csrc" / "arena.c", here / "arena.c") if p.is_file()), None)


def _cache_folder(env: Mapping[str, str]) -> Path:
    if env.get("LULL_CACHE"):
        return Path(env["LULL_CACHE"])
    return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lull"


def _compile(source: Path, env: Mapping[str, str]) -> str | None:
    """Compiles into the cache folder, keyed by the source; None when it cannot."""
    compiler = env.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = _cache_folder(env) / f"arena-{key}.so"
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


def locate(env: Mapping[str, str]) -> str | None:
    """The arena's library: named by LULL_ARENA, built beside the package, or compiled on the spot.

    In a source tree the source is newer truth than a library built from an older one.
    """
    named = env.get(ENV)
    if named and Path(named).is_file():
        return named
    built, source = built_library(), _source()
    if built and (source is None or Path(built).stat().st_mtime >= source.stat().st_mtime):
        return built
    return (_compile(source, env) if source else None) or built


def environment(env: MutableMapping[str, str], library: str | None) -> None:
    """Adds to `env` what the trainer's process needs; what the user has set stays."""
    env.setdefault("MALLOC_MMAP_THRESHOLD_", _THRESHOLD)
    env.setdefault("MALLOC_TRIM_THRESHOLD_", _THRESHOLD)
    env.setdefault("LULL_LOG", "info")
    tunables = env.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in tunables:
        env["GLIBC_TUNABLES"] = f"{tunables}:glibc.malloc.hugetlb=1".lstrip(":")
    if library is None:
        return
    env[ENV] = library
    others = [p for p in env.get("LD_PRELOAD", "").split(":") if p and p != library]
    env["LD_PRELOAD"] = ":".join([library, *others])


def unattached(env: Mapping[str, str], pid: int) -> str:
    """What is to be said where a process with this id ends and was told of a sidecar, yet never attached; or ""."""
    told = [f"{key}={env[key]}" for key in ("LULL_SOCKET", "LULL_DEVICE") if env.get(key)]
    if not told:
        return ""
    return (
        f"{pid} lull.run: lull.attach was never called in this process, so it ran as without Lull and "
        f"{' '.join(told)} was not used; want elastic = lull.attach(model, optimizer), and "
        "elastic.backward(batch, loss_fn) in place of loss.backward() (a launcher whose processes attach is right)\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Never returns: the process becomes the script's."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        print(_USAGE, file=sys.stderr)
        raise SystemExit(2)
    library = locate(os.environ)
    if library is None:
        print(
            "lull.run: no native arena and no C compiler to make it; "
            "memory goes back through malloc, about ten times slower",
            file=sys.stderr,
        )
    env = dict(os.environ)
    environment(env, library)
    if line := unattached(env, os.getpid()):
        env[UNATTACHED] = line
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *args], env)


if __name__ == "__main__":
    main()
