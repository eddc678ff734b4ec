"""The messages of the control channel, one frozen dataclass each.

PROTOCOL.md says what each field means, who sends it and in what unit. A field
without a default is required on the wire; None is left out. Names end in their
unit where it is not bytes: `_us`, `_ms`, `_s`, `_sample_s`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

VERSION: Final = 1
"""The protocol's version, said in hello and welcome."""

HOWS: Final = ("cached", "drop", "suspend", "discard", "finish", "nothing", "part", "superseded")
"""The ways in which an order was met, cheapest first (ack, costs)."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """bytes(b) = max(floor, base + slope * b) of a microbatch of b samples; all in bytes."""

    base: float
    slope: float
    floor: float
    error: float
    """Bytes by which the model may be too low."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is: samples trained on, optimizer steps done, the last loss."""

    samples: int
    step: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One part of an order's work, as offsets from the order's arrival."""

    name: str
    offset_us: int
    took_us: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of freeing costs: time = fixed + per MiB, and the work lost."""

    how: str
    fixed_us: float
    us_per_mib: float
    lost_sample_s: float


@dataclass(frozen=True, slots=True)
class Hello:
    """The trainer's first line on a connection: what it is and what it holds now."""

    version: int
    job: str
    rank: int
    world: int
    pid: int
    device: str
    ceiling: int
    held: int
    last_epoch: int
    baseline: int = 0
    floor: int = 0
    floor_known: bool = False
    min_budget: int = 0
    suspended: int = 0
    memory_model: MemoryModel | None = None
    progress: Progress | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The sidecar's answer to hello."""

    version: int
    session: int
    heartbeat_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Budget:
    """An order: hold at most `bytes` of activation memory from now on."""

    epoch: int
    bytes: int
    within_us: int = 0
    reason: str = ""
    floor: int = 0
    """The floor in force with this order."""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a budget: a promise to hold at most `held` until the next grant."""

    epoch: int
    held: int
    waited_us: int
    freed_us: int
    how: str
    samples_discarded: int = 0
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """The trainer asks for a higher floor before it takes it."""

    floor: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The sidecar's no to a request; `floor` stays in force."""

    floor: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What the trainer did lately; advice, never a promise."""

    bytes: dict[str, int]
    samples: int
    step: int
    microbatch: int
    microbatch_ms: float
    batch_ms: float
    loss: float | None = None
    rate_curve: tuple[tuple[int, float], ...] = ()
    costs: tuple[Cost, ...] = ()
    recomputed: int = 0
    work_lost_sample_s: float = 0.0
    memory_model: MemoryModel | None = None
    model_error: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Train during `duty` (0..1) of the time; back to 1 when lease_ms ends (0: never)."""

    duty: float
    reason: str = ""
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Yield:
    """Stop at the next block until a pace comes or lease_ms ends."""

    lease_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """Checkpoint and leave."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Bye:
    """A clean end, from either side; the sender closes after it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """The sidecar's heartbeat."""

    seq: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping, with its seq."""

    seq: int = 0


@dataclass(frozen=True, slots=True)
class Error:
    """The answer to a line that could not be used; never answered itself."""

    what: str
    where: str
    rule: str


Message: TypeAlias = (
    Hello | Welcome | Budget | Ack | Request | Refused | Report | Pace | Yield | Drain | Bye | Ping | Pong | Error
)

MESSAGES: Final[tuple[type[Message], ...]] = (
    Hello,
    Welcome,
    Budget,
    Ack,
    Request,
    Refused,
    Report,
    Pace,
    Yield,
    Drain,
    Bye,
    Ping,
    Pong,
    Error,
)
"""Every message; the wire's type is the class's name in lower case."""
