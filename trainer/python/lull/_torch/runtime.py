"""The Runtime that the agent drives. Its methods run on the agent's thread, and none waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from lull._agent import HelloState
from lull._protocol import Ack, Budget, Pace, Progress, Report
from lull._torch.account import by_category
from lull._torch.allowance import Allowance
from lull._torch.device import Device
from lull._torch.dry import Floor, state_tensors
from lull._torch.micro import Microbatches
from lull._torch.owed import prefer_this_thread
from lull._torch.segments import Segment
from lull._torch.tail import Tail


class RuntimeSide(Microbatches):
    """What lull._contract.Runtime asks for."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: Device,
        segments: list[Segment],
        *,
        release: str,
        budget: int,
        min_budget: int,
        baseline: int,
        on_drain: Callable[[], None] | None = None,
        tail: Tail | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(model, optimizer, device, segments, release=release, budget=budget, tail=tail, clock=clock)
        self.baseline = baseline
        self.draining = False
        """True once the sidecar asked this job to checkpoint and leave."""
        self.floor: Floor | None = None
        self._own_budget = budget
        self._min_budget = min_budget
        self._on_drain = on_drain
        self._preferred = False
        self._rising = threading.Lock()
        self._outside_bytes = 0
        """What a floor must cover for nothing outside the pool to be above it, as last looked at; 0: all is covered."""
        self._owned: tuple[int, dict[str, int]] = (-1, {})

    def hello(self) -> HelloState:
        if threading.current_thread() is not threading.main_thread() and not self._preferred:
            self._preferred = True  # the agent's thread, once
            prefer_this_thread()
        floor, pool = self.floor, self.device.pool
        return HelloState(
            device=self.device.label,
            floor=floor.bytes if floor else 0,
            floor_known=floor is not None,
            ceiling=self.orders.allowance.held(self.orders.budget),
            held=pool.resident() + self.orders.allowance.excess,
            baseline=self.baseline,
            min_budget=self.min_budget,
            suspended=0,
            memory_model=self.memory.wire(),
            progress=Progress(self.stats.samples, self.stats.steps, self.stats.loss),
            memory=pool.name,
        )

    @property
    def min_budget(self) -> int:
        """The configured one, else what one sample takes."""
        return self._min_budget or (self.least if self.memory.known else 0)

    def apply(self, order: Budget, reply: Callable[[Ack], None]) -> None:
        self._raise_floor(order.floor)  # every order repeats it: a grant that was replaced unread is not lost
        self.orders.apply(order, reply, self._allowance)

    def _raise_floor(self, bytes: int) -> None:
        """A floor was granted, perhaps after training gave up waiting for it. Any thread."""
        with self._rising:
            if self.floor is not None and bytes > self.floor.bytes:
                self.floor = replace(self.floor, bytes=bytes)
                self.device.settle(self.baseline + bytes)

    def _allowance(self) -> Allowance:
        """By the floor in force."""
        floor = self.floor.bytes if self.floor else 0
        return Allowance(max(0, self._outside_bytes - floor), self.least)

    def pace(self, pace: Pace) -> None:
        self._pacer.set(pace)

    def drain(self) -> None:
        self.draining = True
        if self._on_drain is not None:
            self._on_drain()

    def lease_ended(self) -> None:
        self.orders.lower_to(min(self.orders.grant, self.min_budget))

    def report(self) -> Report:
        self._hold_until_granted()
        stats, orders = self.stats, self.orders
        return Report(
            bytes=self.bytes_by_category(),
            samples=stats.samples,
            step=stats.steps,
            microbatch=stats.microbatch,
            microbatch_ms=round(stats.microbatch_ms, 3),
            batch_ms=round(stats.batch_ms, 3),
            loss=stats.loss if stats.loss is not None and abs(stats.loss) < float("inf") else None,
            rate_curve=stats.rate_curve(),
            costs=orders.costs.rows(),
            recomputed=stats.recomputed,
            work_lost_sample_s=round(stats.work_lost_s, 6),
            memory_model=self.memory.wire(),
            model_error=round(self.memory.error, 1),
        )

    def shown(self) -> dict[str, float]:
        """What a progress bar or a logger says of Lull: `tqdm.set_postfix(elastic.shown())`, say.

        The budget in force in MiB, the budgets that were answered, the last microbatch's samples, and the seconds of
        work that orders cost.
        """
        answered = sum(n for how, n in self.orders.hows.items() if how != "superseded")
        return {
            "lull_budget_mib": round(self.orders.budget / (1 << 20), 1),
            "lull_handovers": answered,
            "lull_microbatch": self.stats.microbatch,
            "lull_work_lost_s": round(self.stats.work_lost_s, 3),
        }

    def bytes_by_category(self) -> dict[str, int]:
        """Where the device's bytes are. Slots and inputs are those of the running microbatch."""
        outside_floor = by_category(self.device, self._table, self.baseline, self.floor.bytes if self.floor else 0)
        return {**self._floor_bytes(), **outside_floor}

    def _floor_bytes(self) -> dict[str, int]:
        """Counted again only when optimizer state may have appeared: orders wait while a report is made."""
        states = len(self.optimizer.state)
        if self._owned[0] != states:
            own = self.device.own_bytes
            parts = {
                "parameters": own(self._weights()),
                "gradients": own(self._gradients.tensors()),
                "optimizer": own(state_tensors(self.optimizer)),
            }
            self._owned = (states, parts)
        return self._owned[1]

    def _weights(self) -> list[torch.Tensor]:
        return list(self.model.parameters())

    def _hold_until_granted(self) -> None:
        """A sidecar that said welcome decides what this job may have: until its first budget, the min budget.
        One that does not know this job's device decides nothing: the job's own budget holds.

        The agent asks for a report as soon as it is welcomed or refused, so this is looked at once more there.
        """
        if self.agent is None or self.orders.epoch:
            return
        if self.agent.refused:
            self.orders.return_to(self._own_budget)
        elif self.agent.connected:
            self.orders.lower_to(self.min_budget)
