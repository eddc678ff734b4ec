"""ElasticTrainer in two ranks ends with the weights of the plain Trainer in two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]


def test_two_ranks_under_torchrun_train_as_with_the_plain_trainer(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lull.run", "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *(str(HERE / "ranks_script.py"), str(tmp_path)),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]),
            "LULL_SOCKET": "",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # docs/TRAINING.md, "Failure"
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    apart = [float((tmp_path / f"apart.{rank}").read_text()) for rank in (0, 1)]
    assert max(apart) <= 1e-5, done.stdout
