"""What people run under torchrun: DistributedDataParallel, one checkpoint a step, and Lull.

    python -m lull.run -m torch.distributed.run --nproc-per-node 2 --max-restarts 1 ranks_script.py FOLDER [KILL_AT]

At step KILL_AT rank 1 is killed in the middle of its batch, once.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import lull

STEPS, SAMPLES = 6, 12


def data(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's own batch, the same in each run; ranks have different sizes."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    size = SAMPLES + 5 * rank
    return torch.randn(size, 8, generator=draw).double(), torch.randint(0, 4, (size,), generator=draw)


def main() -> None:
    folder, kill_at = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(1)
    inner = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).double()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    elastic = lull.attach(model, optimizer, budget="64MiB")
    first, checkpoint, killed = 0, folder / "checkpoint.pt", folder / "killed"
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        inner.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"]
        if rank == 0:
            print("resumed at", first, flush=True)

    def loss_fn(part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if rank == 1 and step == kill_at and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return F.cross_entropy(model(part[0]), part[1])

    for step in range(first, STEPS):
        optimizer.zero_grad()
        loss = elastic.backward(data(rank, step), loss_fn)
        optimizer.step()
        if rank == 0:
            print("step", step, "loss", float(loss), flush=True)
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, folder / "new.pt")
            os.replace(folder / "new.pt", checkpoint)
    torch.save(inner.state_dict(), folder / f"end.{rank}.pt")
    torch.distributed.barrier()
    elastic.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
