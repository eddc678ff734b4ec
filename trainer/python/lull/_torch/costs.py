"""What giving memory back costs, learned from every order that was met, and what to do about the next one.

Each way (cached, drop, suspend, discard, finish) has a line, seconds = fixed + per_mib * MiB given back, and the
work that it lost: for drop and suspend what was computed again in that microbatch, for discard what was thrown
away, for the others nothing. `high` is a figure that is rarely passed: the mean and four mean deviations, as TCP
waits for an answer (RFC 6298). Pure: times come in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lull._protocol import Cost

_KEEP = 0.95
"""Weight of what was learned before, at each new observation of the same way."""

_SOON_S = 0.004
"""Seconds that a way is taken to need before it was ever seen."""

_SHARE = 0.75
"""Of a deadline what may be planned with: the ack travels, and the device must show the bytes gone."""

MIB = 1 << 20


@dataclass
class Spread:
    """A moving mean and mean deviation."""

    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def observe(self, value: float) -> None:
        if self.count == 0:
            self.mean, self.deviation = value, value / 2
        else:
            self.deviation += 0.25 * (abs(value - self.mean) - self.deviation)
            self.mean += 0.125 * (value - self.mean)
        self.count += 1

    @property
    def high(self) -> float:
        return self.mean + 4 * self.deviation


@dataclass
class Way:
    """One way's cost."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # weight, x, y, x*x, x*y
    off: Spread = field(default_factory=Spread)
    """How far the line was off, in seconds."""
    lost: Spread = field(default_factory=Spread)
    """Seconds of work lost each time."""

    def observe(self, mib: float, seconds: float) -> None:
        if self.sums[0] > 0:
            self.off.observe(abs(seconds - self.seconds(mib)))
        self.sums = [_KEEP * s for s in self.sums]
        for i, value in enumerate((1.0, mib, seconds, mib * mib, mib * seconds)):
            self.sums[i] += value

    def line(self) -> tuple[float, float]:
        """Seconds fixed, and seconds for each MiB; both at least 0."""
        w, x, y, xx, xy = self.sums
        if w == 0:
            return _SOON_S, 0.0
        spread = w * xx - x * x
        if spread <= 1e-6 * w * xx or w * xy < x * y:  # one size only, or more bytes took less time
            return y / w, 0.0
        slope = (w * xy - x * y) / spread
        fixed = (y - slope * x) / w
        return (fixed, slope) if fixed >= 0 else (0.0, xy / xx)

    def seconds(self, mib: float) -> float:
        fixed, per_mib = self.line()
        return fixed + per_mib * mib

    def high(self, mib: float) -> float:
        return self.seconds(mib) + 4 * self.off.mean


@dataclass(frozen=True)
class Plan:
    """What is done about an order, and why."""

    how: str
    wait_s: float
    """Seconds from the order for which the running microbatch is left alone; 0 unless how is finish."""
    why: str


class Costs:
    """The model of one job. Observed and asked under the lock of Orders."""

    def __init__(self) -> None:
        self.ways: dict[str, Way] = {}
        self.sample_s = Spread()
        """Seconds that a sample takes in an undisturbed microbatch."""

    def way(self, how: str) -> Way:
        return self.ways.setdefault(how, Way())

    def observe(self, how: str, bytes: int, seconds: float) -> None:
        """An order was met: bytes given back, and seconds from its arrival."""
        if how not in ("superseded", "nothing", "part"):
            self.way(how).observe(bytes / MIB, seconds)

    def lost(self, how: str, seconds: float) -> None:
        """The work that an order cost, known once its microbatch is over."""
        self.way(how).lost.observe(seconds)

    def high(self, how: str, bytes: int) -> float:
        """Seconds that this way rarely passes."""
        way = self.ways.get(how)
        return _SOON_S if way is None else way.high(bytes / MIB)

    def choose(self, over: int, within_s: float, samples: int, elapsed_s: float) -> Plan:
        """For an order that is `over` bytes short while a microbatch of `samples` has run for `elapsed_s`
        undisturbed: let it finish, which loses nothing, if it ends in time and there would still be time to drop;
        else drop, which is computed again.

        Without a deadline there is no time to reckon with: memory goes back at once.
        """
        left = samples * self.sample_s.high - elapsed_s
        drop_s = self.high("drop", over)
        loses = self.way("drop").lost.mean if "drop" in self.ways else 0.0
        if within_s <= 0:
            return Plan("drop", 0.0, "no deadline: at once")
        if self.sample_s.count < 2 or samples * self.sample_s.mean <= elapsed_s:
            return Plan("drop", 0.0, "when the microbatch ends is not known")
        wait_s = _SHARE * within_s - drop_s
        if left > wait_s:
            return Plan(
                "drop",
                0.0,
                f"finish takes up to {left * 1e3:.1f} ms, which a deadline of {within_s * 1e3:.1f} ms "
                f"with {drop_s * 1e3:.1f} ms kept for a drop has not",
            )
        return Plan(
            "finish",
            wait_s,
            f"finish takes up to {left * 1e3:.1f} ms and loses nothing; drop takes up to {drop_s * 1e3:.1f} ms "
            f"and loses about {loses * 1e3:.1f} ms of work",
        )

    def must_discard(self, within_s: float, waited_s: float, over: int) -> bool:
        """Whether an order that only suspending or discarding can still meet has no time left for the cheaper of
        the two: suspending loses nothing as long as the microbatch can go on."""
        way = self.ways.get("discard")
        takes_s = _SOON_S if way is None else way.seconds(over / MIB)  # the share of the deadline is margin enough
        return waited_s + takes_s > _SHARE * within_s

    def rows(self) -> tuple[Cost, ...]:
        """As report carries it."""
        found = []
        for how, way in sorted(self.ways.items()):
            if way.sums[0] > 0:
                fixed, per_mib = way.line()
                found.append(Cost(how, round(fixed * 1e6, 1), round(per_mib * 1e6, 2), round(way.lost.mean, 6)))
        return tuple(found)
