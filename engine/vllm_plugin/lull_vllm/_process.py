"""What /proc says about memory: of this process, of the machine and of its cgroup. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

_STATUS = "/proc/self/status"


def own_bytes(status: str = _STATUS) -> int:
    """Returns RssAnon + RssShmem of this process in bytes."""
    total = 0
    with open(status, encoding="ascii") as lines:
        for line in lines:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def is_private_anonymous(address: int, length: int, maps: str = "/proc/self/maps") -> bool:
    """Says whether [address, address+length) is one private mapping of no file.

    MADV_DONTNEED on a shared mapping frees nothing, and on a file mapping it brings the file back.
    """
    end = address + length
    covered = address
    with open(maps, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            parts = line.split(maxsplit=5)
            low, high = (int(side, 16) for side in parts[0].split("-"))
            if high <= covered or low >= end:
                continue
            if low > covered or parts[1][3] != "p" or parts[4] != "0":
                return False
            covered = high
    return covered >= end


def room_bytes(root: Path = Path("/")) -> int:
    """Returns the bytes that this process could still take: of the machine and of its cgroup."""
    room = _mem_available(root)
    for limit, usage in _cgroup_files(root):
        try:
            top = limit.read_text(encoding="ascii").strip()
            used = int(usage.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if top != "max":
            room = min(room, max(0, int(top) - used))
    return room


def _mem_available(root: Path) -> int:
    with open(root / "proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _cgroup_files(root: Path) -> list[tuple[Path, Path]]:
    """Returns (limit, usage) files of this process's memory cgroup and of its parents."""
    found: list[tuple[Path, Path]] = []
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="ascii")
    except OSError:
        return found
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # A container may see its own group as the root of the mount.
        at = base / path.lstrip("/")
        while True:
            if (at / names[0]).exists():
                found.append((at / names[0], at / names[1]))
            if at == base or not str(at).startswith(str(base)) or at == at.parent:
                break
            at = at.parent
    return found


def page_size() -> int:
    """Returns the size of a page of memory."""
    return os.sysconf("SC_PAGE_SIZE")
