"""What the plugin costs of the throughput: `vllm bench serve` against servers that take turns.

Two servers that are alike differ by more than the plugin costs, by where their memory happens to lie and by what the
machine does meanwhile. So the runs are short and many, a pair of stock servers stands beside them as the noise, and
the servers are started anew between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from changes import Pair, Run, changes
from measure import distinct
from rig import FakeSidecar, Load, Server, alone, cpu_seconds, engine_pids, page_faults, warm

TOUCHES = 8
"""One pair in so many is run again on a pool that was given back."""


Kinds = dict[str, list[Pair]]
"""twins: a stock server and another; full: with the plugin and without; first_touch: the same after the plugin has
given its pool back and got it again, so that blocks are touched for the first time."""


def one_round(
    on: Server, off: Server, twin: Server, sidecar: FakeSidecar, load: Load, pairs: int, prompts: int, first: int
) -> Kinds:
    """Pairs of each kind in ABBA order on these servers, pools full of cached prefixes; first numbers them."""
    page = sidecar.page()
    whole = distinct(3, page["pool_blocks"] // 7 + 1, 7 * page["block_tokens"] - 1)
    every = (on, off, twin)
    for server in every:
        with alone(*(s for s in every if s is not server)):
            warm(server, whole, 2)
            load.run(server, prompts, 0)

    def give_back() -> None:
        sidecar.confirmed(sidecar.order(page["pool_blocks"] // 20 * page["block_bytes"]))
        sidecar.confirmed(sidecar.order(page["pool_blocks"] * page["block_bytes"]))

    seen: Kinds = {"twins": [], "full": [], "first_touch": []}
    for number in range(first, first + pairs):
        seen["twins"].append(pair(twin, off, every, None, number, load, prompts))
        seen["full"].append(pair(on, off, every, None, number, load, prompts))
    # At the end: pages that were given back and touched anew lie elsewhere than those of a full pool.
    for number in range(first, first + max(1, pairs // TOUCHES)):
        seen["first_touch"].append(pair(on, off, every, give_back, number, load, prompts))
    return seen


def pair(
    first: Server,
    second: Server,
    every: Sequence[Server],
    before: Callable[[], None] | None,
    number: int,
    load: Load,
    prompts: int,
) -> Pair:
    """One run of each, the second first in every other pair; before runs before the first's."""
    seen: dict[Server, Run] = {}
    for server in (first, second) if number % 2 else (second, first):
        with alone(*(s for s in every if s is not server)):
            if before is not None and server is first:
                before()
            pids = engine_pids(server)
            cpu, faults = cpu_seconds(pids), page_faults(pids)
            result = load.run(server, prompts, number + 1)
            seen[server] = Run(float(result["output_throughput"]), cpu_seconds(pids) - cpu, page_faults(pids) - faults)
    return seen[first], seen[second]


def summed(rounds: Sequence[Kinds]) -> dict[str, Any]:
    """By kind: changes from the second of a pair to the first over all rounds, each round's median, and every run."""
    return {kind: changes([seen[kind] for seen in rounds]) for kind in rounds[0]}
