"""Several ranks on this machine: forked from the test's process, which has PyTorch loaded and never ran a backward
pass, joined over gloo and a store on loopback."""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import lull
from lull._torch.attach import _warm
from lull._torch.cpu import Cpu

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What became of a rank: its result, or its error; neither if it died."""

    value: Any = None
    error: str = ""
    text: str = ""
    ranks: tuple[int, ...] = ()
    trace: str = ""


def run(world: int, scenario: Callable[..., Any], *args: Any, **named: Any) -> list[Answer]:
    """Calls scenario(rank, *args) in each of `world` processes of one group; answers by rank."""
    _warm(Cpu())  # imports for seconds; once, here, not in each rank
    context: Any = mp.get_context("fork")
    started = []
    for rank in range(world):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(theirs, rank, world, scenario, args, named))
        process.start()
        theirs.close()
        started.append((process, ours))
    # Here, as in torchrun's agent: a rank that dies takes no store with it. Made after the forks, since it has threads.
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for _, ours in started:
        ours.send(store.port)
    answers = [_answer(ours) for _, ours in started]
    for _, ours in started:
        with suppress(OSError):  # a rank that died reads nothing
            ours.send("end")
        ours.close()
    for process, _ in started:
        process.join(TIMEOUT_S)
    return answers


def _answer(ours: Connection) -> Answer:
    if not ours.poll(TIMEOUT_S):
        return Answer(error="Timeout", text=f"no answer in {TIMEOUT_S:g} s")
    try:
        return torch.load(io.BytesIO(ours.recv_bytes()), weights_only=False)
    except EOFError:
        return Answer()


def _rank(pipe: Connection, rank: int, world: int, scenario: Any, args: Any, named: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # After a fork PyTorch makes its thread pool anew at the first use, and ends the process where two threads come
    # to that at once (caffe2/utils/threadpool/pthreadpool-cpp.cc): backward's own would meet this one.
    torch.set_num_threads(torch.get_num_threads())
    try:
        store = dist.TCPStore("127.0.0.1", pipe.recv(), None, False, timedelta(seconds=TIMEOUT_S))
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=named.pop("timeout_s", 30.0))
        )
        answer = Answer(scenario(rank, *args, **named))
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        answer = Answer(None, type(error).__name__, str(error), getattr(error, "ranks", ()), trace)
    said = io.BytesIO()
    torch.save(answer, said)
    pipe.send_bytes(said.getvalue())
    pipe.recv()  # until all have answered
    os._exit(0)


def values(answers: list[Answer]) -> list[Any]:
    """The results of ranks that must all have one."""
    for rank, answer in enumerate(answers):
        assert not answer.error, f"rank {rank}: {answer.trace or answer.text}"
        assert answer.value is not None, f"rank {rank} died"
    return [answer.value for answer in answers]


def close(elastic: lull.Elastic) -> None:
    """At the end of a scenario, together: one that leaves earlier is missed by the others."""
    dist.barrier()
    elastic.close()
