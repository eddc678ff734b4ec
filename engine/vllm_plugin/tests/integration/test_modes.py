"""The storm again in vLLM's other modes, two at a time: each starts a server of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_sidecar import FakeSidecar
from server import Server, process_bytes
from traffic import Storm, answers, prompts

from lull_vllm import _page

pytestmark = pytest.mark.integration

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
MODES = {
    "speculation_without_async": [
        "--speculative-config", json.dumps(NGRAM), "--no-async-scheduling",
    ],
    "two_ranks_without_prefix_caching": [
        "--tensor-parallel-size", "2", "--no-enable-prefix-caching",
    ],
}  # fmt: skip


@pytest.mark.parametrize("mode", list(MODES))
def test_storm_leaves_no_trace(
    mode: str, model: Path, undisturbed: list[list[int]], tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if "two_ranks" in mode and len(cpus) < 2:
        pytest.skip("two ranks want two CPUs")
    bind = {"VLLM_CPU_OMP_THREADS_BIND": f"{cpus[0]}|{cpus[1]}"} if "two_ranks" in mode else {}
    server = Server(tmp_path, model, *MODES[mode], env=bind)
    sidecar = None
    try:
        server.wait_ready()
        sidecar = FakeSidecar(server.directory)
        calm = answers(server, prompts())
        with Storm(sidecar) as storm:
            first = answers(server, prompts())
            second = answers(server, prompts(), 5)
        assert first == calm and second == calm
        assert calm == undisturbed
        assert storm.orders >= 50 and storm.confirmed >= 10
        page = sidecar.page()
        assert page["mode"] == _page.MODE_HOST_PAGES and page["flags"] == 0
        assert page["faults"] == 0 and page["given_back_bytes"] > 0
        answers(server, prompts()[:8])  # the storm's last order may have left nothing mapped
        every_rank_gives_back(sidecar, page["ranks"])
    finally:
        server.stop()
        if sidecar is not None:
            sidecar.close()


def every_rank_gives_back(sidecar: FakeSidecar, ranks: int) -> None:
    """Orders none of the pool and looks at each worker's memory."""
    page = sidecar.page()
    pids = [page[f"worker_pid_{rank}"] for rank in range(ranks)]
    mapped = page["blocks_mapped"] * page["block_bytes"]
    assert mapped > 0 and len(set(pids)) == ranks and page["ranks_alive"] == ranks
    before = [process_bytes(pid) for pid in pids]
    assert sidecar.confirmed(sidecar.order(0))["blocks_mapped"] == 0
    for pid, was in zip(pids, before, strict=True):
        assert was - process_bytes(pid) >= 0.9 * mapped  # the pool is small beside its heap
