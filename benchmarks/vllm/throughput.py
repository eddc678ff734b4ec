"""What the plugin costs of the throughput: `vllm bench serve` against servers that take turns.

Two servers that are alike differ by more than the plugin costs, by where their memory happens to lie and by what the
machine does meanwhile. So the runs are short and many, a pair of stock servers stands beside them as the noise, and
the servers are started anew between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changes import Pair, Run, changes, turn
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
    """Pairs of each kind on these servers, which take turns, pools full of cached prefixes; first numbers them."""
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

    def one(server: Server, number: int) -> Run:
        with alone(*(s for s in every if s is not server)):
            pids = engine_pids(server)
            cpu, faults = cpu_seconds(pids), page_faults(pids)
            result = load.run(server, prompts, number + 1)
            return Run(float(result["output_throughput"]), cpu_seconds(pids) - cpu, page_faults(pids) - faults)

    seen: Kinds = {"twins": [], "full": [], "first_touch": []}
    for number in range(first, first + pairs):
        runs = {server: one(server, number) for server in turn(every, number)}
        seen["twins"].append((runs[twin], runs[off]))
        seen["full"].append((runs[on], runs[off]))
    # At the end: pages that were given back and touched anew lie elsewhere than those of a full pool.
    for number in range(first, first + max(1, pairs // TOUCHES)):
        runs = {}
        for server in turn((on, off), number):
            if server is on:
                give_back()
            runs[server] = one(server, number)
        seen["first_touch"].append((runs[on], runs[off]))
    return seen


def summed(rounds: Sequence[Kinds]) -> dict[str, Any]:
    """By kind: changes from the second of a pair to the first over all rounds, each round's median, and every run."""
    return {kind: changes([seen[kind] for seen in rounds]) for kind in rounds[0]}
