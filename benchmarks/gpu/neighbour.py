"""A process beside training that takes memory when told, and says whether it could: `python neighbour.py cuda`.

A line on stdin is a number of bytes to take, 0 to give back what was taken, or `keep` to count what was taken as its
own from now on, which 0 leaves; a line on stdout is `ok` or why not.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Until stdin ends."""
    import torch

    kind = sys.argv[1]
    torch.empty(1, device=kind)  # the context is there before the first order
    print("ok", flush=True)
    held: list[torch.Tensor] = []
    own: list[torch.Tensor] = []
    for line in sys.stdin:
        said = "ok"
        if line.strip() == "keep":
            own += held
            held.clear()
        elif not (size := int(line)):
            held.clear()
            if kind == "cuda":
                torch.cuda.empty_cache()
        else:
            try:
                block = torch.empty(size, dtype=torch.uint8, device=kind)
                block.fill_(1)
                if kind == "cuda":
                    torch.cuda.synchronize()
                held.append(block)
                del block
            except RuntimeError as error:
                said = str(error).splitlines()[0]
        print(said, flush=True)


if __name__ == "__main__":
    main()
