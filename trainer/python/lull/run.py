"""`python -m lull.run script.py args...`: sets what must be set before a process starts.

It preloads the native arena, makes glibc return large blocks at once and ask for huge pages, shows what Lull
logs (LULL_LOG=info unless set), and then becomes the script's own process. OMP and MKL settings are left alone.
Without a built arena it compiles csrc/arena.c once into the cache folder; without a compiler it says so and
goes on with malloc alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from lull._arena import ENV, UNATTACHED
from lull._build import ARENA, library

__all__ = ["environment", "locate", "main"]

_USAGE = "usage: python -m lull.run [-m module | script.py | -c code] [args...]"
_THRESHOLD = "262144"


def locate(env: Mapping[str, str]) -> str | None:
    """The arena's library: named by LULL_ARENA, built beside the package, or compiled on the spot."""
    named = env.get(ENV)
    if named and Path(named).is_file():
        return named
    return library(ARENA, env)


def environment(env: MutableMapping[str, str], arena: str | None) -> None:
    """Adds to `env` what the trainer's process needs; what the user has set stays."""
    env.setdefault("MALLOC_MMAP_THRESHOLD_", _THRESHOLD)
    env.setdefault("MALLOC_TRIM_THRESHOLD_", _THRESHOLD)
    env.setdefault("LULL_LOG", "info")
    tunables = env.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in tunables:
        env["GLIBC_TUNABLES"] = f"{tunables}:glibc.malloc.hugetlb=1".lstrip(":")
    if arena is None:
        return
    env[ENV] = arena
    others = [p for p in env.get("LD_PRELOAD", "").split(":") if p and p != arena]
    env["LD_PRELOAD"] = ":".join([arena, *others])


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
    arena = locate(os.environ)
    if arena is None:
        print(
            "lull.run: no native arena and no C compiler to make it; "
            "memory goes back through malloc, about ten times slower",
            file=sys.stderr,
        )
    env = dict(os.environ)
    environment(env, arena)
    if line := unattached(env, os.getpid()):
        env[UNATTACHED] = line
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *args], env)


if __name__ == "__main__":
    main()
