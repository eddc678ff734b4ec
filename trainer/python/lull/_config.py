"""What a training process can set, and the one function that reads the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lull._errors import ConfigError
from lull._show import LEVELS

__all__ = ["RELEASES", "Config", "parse_bytes"]

RELEASES = ("slots", "next-saved", "microbatch", "batch")

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ADDRESS = re.compile(r"[^/]+:[0-9]{1,5}")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB|)\s*\Z")


def parse_bytes(key: str, text: str) -> int:
    """Reads "64MiB", "1.5 GiB" or a plain number of bytes; the same rule as Go's size.Parse."""
    match = _SIZE.match(text)
    if match is None:
        raise ConfigError(key, text, "a number with B, KiB, MiB or GiB, such as 640MiB")
    return round(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Config:
    """Settings of one training process. Arguments beat the environment, which beats defaults."""

    socket: str = "/run/lull/lull.sock"
    """Unix socket of the sidecar (LULL_SOCKET), or tcp://host:port; "" runs without a sidecar."""

    job: str = ""
    """The job's name, equal in all its ranks (LULL_JOB; else TORCHELASTIC_RUN_ID; else from the
    pid, or the parent's pid when there are several ranks)."""

    rank: int = 0
    """This process's rank in the job (LULL_RANK, else RANK)."""

    world: int = 1
    """The number of ranks (LULL_WORLD, else WORLD_SIZE)."""

    device: str = ""
    """The device's name in the sidecar's lull.yaml (LULL_DEVICE); "" says what the runtime calls it,
    cpu or cuda:0."""

    budget: int | None = None
    """Activation bytes while no sidecar has been seen (LULL_BUDGET, "640MiB"); None: half of the device's memory."""

    min_budget: int = 0
    """Activation bytes below which the job asks not to be pushed, and to which it goes when the
    lease ends (LULL_MIN_BUDGET). Too low: training crawls without a sidecar; too high: an order
    cannot be met in full."""

    release: str = "slots"
    """How an order frees memory (LULL_RELEASE): `slots` empties slots at once; `next-saved`,
    `microbatch` and `batch` are the methods it is compared with."""

    token: str = field(default="", repr=False)
    """The shared secret for tcp:// (LULL_TOKEN); unused on a Unix socket."""

    tls_ca: str = ""
    """A PEM file that signs the sidecar's certificate (LULL_TLS_CA); "" means the system's."""

    log: str = ""
    """Shows Lull's log lines of this level and above (LULL_LOG: debug, info, warning, error) on stderr while
    the script has set up no logging; "" leaves logging alone. lull.run sets info."""

    report_s: float = 1.0
    """Seconds between reports. Shorter costs the interpreter lock, longer blurs /metrics."""

    backoff_first_s: float = 0.05
    """Seconds before the first reconnect; doubled each time, half of it random."""

    backoff_max_s: float = 2.0
    """The longest pause between reconnects. Longer delays a restarted sidecar's first decision."""

    def __post_init__(self) -> None:
        scheme, there, rest = self.socket.partition("://")
        if there and (scheme != "tcp" or not _ADDRESS.fullmatch(rest) or int(rest.rpartition(":")[2]) > 65535):
            raise ConfigError("socket", self.socket, 'a path, tcp://host:port or "" (LULL_SOCKET)')
        for key, value in (("rank", self.rank), ("min_budget", self.min_budget), ("budget", self.budget or 0)):
            if value < 0:
                raise ConfigError(key, value, "at least 0")
        if self.world < 1 or self.rank >= self.world:
            raise ConfigError("rank", f"{self.rank} of {self.world}", "0 <= rank < world")
        if self.release not in RELEASES:
            raise ConfigError("release", self.release, "one of " + ", ".join(RELEASES))
        if self.log and self.log not in LEVELS:
            raise ConfigError("log", self.log, "one of " + ", ".join(LEVELS))
        if self.budget is not None and self.budget < self.min_budget:
            raise ConfigError("budget", self.budget, f"at least min_budget, {self.min_budget}")
        if self.report_s <= 0 or self.backoff_first_s <= 0 or self.backoff_max_s < self.backoff_first_s:
            raise ConfigError(
                "report_s, backoff_first_s, backoff_max_s",
                (self.report_s, self.backoff_first_s, self.backoff_max_s),
                "positive seconds, the first backoff at most the longest",
            )

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        socket: str | None = None,
        job: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        device: str | None = None,
        budget: int | str | None = None,
        min_budget: int | str | None = None,
        release: str | None = None,
    ) -> Config:
        """Reads the environment once (os.environ unless given) and lays the arguments over it. An empty variable is
        one that is not set, as where a compose file passes on what nobody gave; but for LULL_SOCKET, where it says
        that there is no sidecar, and LULL_LOG, where it leaves logging alone also under lull.run."""
        env = os.environ if environ is None else environ
        ranks = _number(env, world, "LULL_WORLD", "WORLD_SIZE", 1)
        pid = os.getppid() if ranks > 1 else os.getpid()
        return cls(
            socket=socket if socket is not None else env.get("LULL_SOCKET", cls.socket),
            job=_text(env, job, "LULL_JOB", _run_id(env) or f"pid-{pid}"),
            rank=_number(env, rank, "LULL_RANK", "RANK", 0),
            world=ranks,
            device=_text(env, device, "LULL_DEVICE", ""),
            budget=_size(env, budget, "LULL_BUDGET"),
            min_budget=_size(env, min_budget, "LULL_MIN_BUDGET") or 0,
            release=_text(env, release, "LULL_RELEASE", cls.release),
            token=env.get("LULL_TOKEN", ""),
            tls_ca=env.get("LULL_TLS_CA", ""),
            log=env.get("LULL_LOG", "").lower(),
        )


def _run_id(env: Mapping[str, str]) -> str:
    """torchrun's name for the run, where it was given one: "none" is what every other run is called."""
    name = env.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def _text(env: Mapping[str, str], given: str | None, key: str, default: str) -> str:
    return given if given is not None else env.get(key) or default


def _number(env: Mapping[str, str], given: int | None, key: str, other: str, default: int) -> int:
    if given is not None:
        return given
    for name in (key, other):
        if env.get(name):
            try:
                return int(env[name])
            except ValueError:
                raise ConfigError(name, env[name], "an integer") from None
    return default


def _size(env: Mapping[str, str], given: int | str | None, key: str) -> int | None:
    value: int | str | None = given if given is not None else env.get(key) or None
    return parse_bytes(key, value) if isinstance(value, str) else value
