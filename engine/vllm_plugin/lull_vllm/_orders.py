"""What the sidecar asks for, and what holds while it is silent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ._errors import PageError
from ._page import PageReader

logger = logging.getLogger("vllm.lull")

_ROOM_EVERY_S = 1.0


class Orders:
    """Reads the bound page and keeps the epoch, the lease and the return after it.

    An epoch never goes back. A page that cannot be trusted changes nothing. A sidecar that is
    silent for its lease loses nothing at once: the bound stays until the machine has room for the
    whole pool, and comes back into force with the sidecar's next sign of life.
    """

    def __init__(
        self,
        reader: PageReader,
        instance: int,
        lease_s: float,
        room: Callable[[int], bool],
        clock: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._instance = instance
        self._default_lease_s = lease_s
        self._lease_s = lease_s
        self._room = room
        self._clock = clock
        self._last_sign = clock()
        self._next_room = 0.0
        self.epoch = 0
        self.bytes: int | None = None  # None until the first order
        self.refused = 0
        self.corrupt = False
        self.gone = False
        self.raised = False

    def poll(self) -> bool:
        """Reads the page; returns whether an order, or a sign of life after silence, came."""
        try:
            value = self._reader.read()
        except PageError as error:
            if not self.corrupt:
                logger.warning(
                    "lull: bound page: %s; the bound stays at epoch %d", error, self.epoch
                )
            self.corrupt = True
            return False
        if value is None:
            return False
        self.corrupt = False
        return self._obey(value)

    def changed(self) -> bool:
        """Whether poll would find something; changes nothing."""
        return self._reader.changed()

    def _obey(self, value: dict[str, int]) -> bool:
        if value["instance"] not in (0, self._instance):
            self.refused += 1
            return False
        self._last_sign = self._clock()
        self._lease_s = value["lease_us"] / 1e6 or self._default_lease_s
        returned = self.gone
        self.gone = self.raised = False
        epoch, size = value["epoch"], value["bytes"]
        if epoch == 0 or (epoch, size) == (self.epoch, self.bytes):
            return returned
        if epoch <= self.epoch:
            self.refused += 1
            return returned
        self.epoch, self.bytes = epoch, size
        return True

    def expire(self, unmapped: int) -> bool:
        """Looks at the lease; returns whether the bound went back to the pool just now.

        unmapped is the bytes that the whole pool would take beyond what is mapped.
        """
        now = self._clock()
        if self.bytes is None or now - self._last_sign <= self._lease_s:
            return False
        if self._reader.changed() and not self.corrupt:
            return False  # a sign that poll has not seen: the scheduler is in a long step
        if not self.gone:
            self.gone = True
            logger.warning(
                "lull: no sign of the sidecar for %.1f s; the bound of epoch %d stays until the "
                "machine has room for the whole pool",
                self._lease_s,
                self.epoch,
            )
        if self.raised or now < self._next_room:
            return False
        self._next_room = now + _ROOM_EVERY_S
        if not self._room(unmapped):
            return False
        self.raised = True
        return True

    @property
    def target(self) -> int | None:
        """Bytes a rank that the engine may map; None for the whole pool."""
        return None if self.raised else self.bytes
