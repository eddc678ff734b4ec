"""A script under torchrun, a rank of which is killed: it is started again and ends with the weights of one pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
import ranks_script

pytestmark = pytest.mark.integration

PACKAGE = Path(__file__).parents[2]


def plain() -> torch.nn.Module:
    """The same training in one process, each step one pass over the batches of both ranks."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(ranks_script.STEPS):
        optimizer.zero_grad()
        x, y = map(torch.cat, zip(ranks_script.data(0, step), ranks_script.data(1, step), strict=True))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_killed_rank_is_started_again_and_training_ends_with_the_weights_of_one_pass(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lull.run", "-m", "torch.distributed.run"),
            *("--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.1"),
            *(str(Path(ranks_script.__file__)), str(tmp_path), "3"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE),
            "LULL_SOCKET": "",
            "GLOO_SOCKET_IFNAME": "lo",
            # PyTorch 2.13 keeps one store over restarts, in which gloo finds the addresses of the attempt before.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert (tmp_path / "killed").exists()
    assert "resumed at 3" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("step ")] == list("012345")
    first, second = (torch.load(tmp_path / f"end.{rank}.pt") for rank in (0, 1))
    for key, want in plain().state_dict().items():
        assert torch.equal(first[key], second[key])
        assert float((first[key] - want).norm() / want.norm()) <= 1e-9
