"""What can be set about a CUDA device, from the environment alone: attach has no arguments for one kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lull._config import parse_bytes
from lull._errors import ConfigError
from lull._vmm import GRAIN, HANDLE

POOLS = ("arena", "caching")


@dataclass(frozen=True)
class CudaSettings:
    """Defaults are guesses from what is published about the driver: docs/GPU.md says what `make gpu-check` sweeps."""

    pool: str = "arena"
    """Where activations lie (LULL_CUDA_POOL): Lull's arena, or PyTorch's caching allocator alone."""

    handle: int = HANDLE
    """Bytes of one physical piece of the arena (LULL_CUDA_HANDLE). Larger ones are given back in fewer calls, and a
    tensor that lives on pins more."""

    run_ahead: int = 2
    """Blocks that Python may be ahead of the GPU (LULL_CUDA_RUN_AHEAD); 0 for no bound. An order waits for what is
    queued, so a small number makes it sooner; too small, the GPU waits for Python."""

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise ConfigError("LULL_CUDA_POOL", self.pool, "one of " + ", ".join(POOLS))
        if self.handle < GRAIN or self.handle % GRAIN:
            raise ConfigError("LULL_CUDA_HANDLE", self.handle, "a multiple of 2MiB")
        if self.run_ahead < 0:
            raise ConfigError("LULL_CUDA_RUN_AHEAD", self.run_ahead, "at least 0")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> CudaSettings:
        """An empty variable is one that is not set."""
        text = env.get("LULL_CUDA_RUN_AHEAD") or str(cls.run_ahead)
        if not text.strip().isdecimal():
            raise ConfigError("LULL_CUDA_RUN_AHEAD", text, "a whole number of blocks, 0 for no bound")
        return cls(
            pool=env.get("LULL_CUDA_POOL") or cls.pool,
            handle=parse_bytes("LULL_CUDA_HANDLE", env.get("LULL_CUDA_HANDLE") or str(cls.handle)),
            run_ahead=int(text),
        )
