"""Python is never more than so many blocks ahead of the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lull._torch.run_ahead import RunAhead

pytestmark = pytest.mark.cpu


class Stream:
    """Counts blocks that were queued and that are known to be done."""

    def __init__(self) -> None:
        self.queued = self.done = self.events = 0


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, 0
        stream.events += 1

    def record(self) -> None:
        self.at = self.stream.queued

    def synchronize(self) -> None:
        self.stream.done = max(self.stream.done, self.at)


@given(st.integers(0, 9), st.integers(0, 60))
def test_depth_bounds_the_blocks_between_python_and_the_device(depth: int, blocks: int) -> None:
    stream = Stream()
    ahead = RunAhead(depth, lambda: Event(stream))
    for _ in range(blocks):
        ahead.boundary()
        if depth:
            assert stream.queued - stream.done <= depth
        stream.queued += 1
    assert stream.events == min(depth, blocks), "events are used again"
    assert stream.done == (max(0, blocks - 1 - depth) if depth else 0), "and no longer waited for than needed"
