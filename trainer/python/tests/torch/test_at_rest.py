"""At exit gloo's workers come to rest while the interpreter still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lull._torch.at_rest import at_work, wait

pytestmark = pytest.mark.cpu

PACKAGE = Path(__file__).parents[2]

SCRIPT = """
import warnings, torch, torch.distributed as dist, lull
from lull._torch import at_rest
warnings.simplefilter("ignore")
at_rest.wait.__defaults__ = (lambda: print("waits"), *at_rest.wait.__defaults__[1:])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(4, 1)
ddp = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(2):
    lull.attach(ddp, torch.optim.SGD(model.parameters(), 0.1)).close()
print("end of the script")
"""


def thread(tasks: Path, number: int, name: str, state: str) -> None:
    (tasks / str(number)).mkdir()
    (tasks / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 {number} 0 -1 4194304\n")


@pytest.mark.parametrize(
    ("name", "state", "busy"),
    [
        ("pt_gloo_runloop", "R", True),
        ("pt_gloo_runloop", "D", True),
        ("pt_gloo_runloop", "S", False),
        ("python", "R", False),
        ("odd) R (name", "R", False),
    ],
)
def test_only_a_worker_that_does_not_sleep_is_at_work(tmp_path: Path, name: str, state: str, busy: bool) -> None:
    thread(tmp_path, 1, "python", "R")
    thread(tmp_path, 2, "pt_gloo_runloop", "S")
    thread(tmp_path, 3, name, state)
    (tmp_path / "4").mkdir()  # a thread that ended meanwhile
    assert at_work(tmp_path) is busy


def test_a_name_that_is_no_text_hides_no_worker(tmp_path: Path) -> None:
    """A name is 15 bytes of anything: the kernel cuts a longer one within a letter."""
    thread(tmp_path, 1, "", "S")
    (tmp_path / "1" / "stat").write_bytes(b"1 (abcdefghijklmn\xc3) S 1 1 0\n")
    assert not at_work(tmp_path)
    thread(tmp_path, 2, "pt_gloo_runloop", "R")
    assert at_work(tmp_path)


def waits(answers: list[bool]) -> int:
    """How often a process sleeps that is told these, the last for ever, with a look a second."""
    slept: list[float] = []

    def busy() -> bool:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    wait(busy, slept.append, lambda: float(len(slept)))
    return len(slept)


def test_a_process_ends_when_its_workers_have_rested_for_some_looks() -> None:
    assert waits([False]) == 3
    assert waits([True, False]) == 4
    assert waits([False, True, False]) == 5, "a worker that had only paused"


def test_a_worker_that_never_rests_holds_nobody_for_ever() -> None:
    assert waits([True]) == 5


def test_a_rank_of_a_job_waits_for_them_once_at_its_end() -> None:
    """Through attach, in a process of its own, since what is registered is the process's."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "GLOO_SOCKET_IFNAME": "lo", "LULL_SOCKET": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["end of the script", "waits", "waits", "waits"], "three looks, once"
