"""Which slots are emptied, so that memory goes and the next operator still finds its own."""

from __future__ import annotations

from lull._torch.device import Pool
from lull._torch.slots import Run, Table


class Room:
    """Of one pool. Emptying is under the lock of who calls."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def margin(self, table: Table) -> int:
        """Bytes to keep free for the next operator's temporaries. Where an allocation above the cap waits, slots are
        emptied for it then, so that fewer are ahead; where none waits this margin is all there is."""
        return (1 if self._pool.waits else 2) * table.largest

    def crowded(self, table: Table, ceiling: int) -> bool:
        """Whether the next operator may not find its memory, in a pool that then fails at once."""
        pool = self._pool
        return pool.capped and not pool.waits and pool.above(ceiling - self.margin(table))

    def fits(self, run: Run, ceiling: int) -> bool:
        """Whether a block may run again."""
        return self._pool.in_use() + run.need <= ceiling

    def empty_to(self, table: Table, goal: int) -> None:
        """Empties runs until so many bytes are left, or nothing is left to empty."""
        measure = self._pool.in_use if self._pool.capped else self._pool.resident
        table.empty_earliest(lambda: measure() <= goal)

    def empty_down_to(self, table: Table, target: int) -> bool:
        """Empties runs until resident can be trimmed to target, now or once the device is done, or nothing is left to
        empty. Returns whether it emptied any."""
        pool, before = self._pool, table.dropped
        while True:
            over, crowded = pool.resident() - pool.coming() - target, self.crowded(table, target)
            if over <= 0 and not crowded:
                return table.dropped > before
            dropped = table.dropped
            # Of what is resident a part may be free and yet not trimmable: goes by what must still leave.
            goal = pool.in_use() - max(0, over)
            self.empty_to(table, max(0, min(goal, target - self.margin(table)) if crowded else goal))
            pool.trim(target)
            if table.dropped == dropped:
                return table.dropped > before
