"""Processes with one thread each, which are the ranks of a process group over gloo."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what work(rank, ranks, *arguments) returns in each of the processes, in the order in which they end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tenfold.workers.process"])
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=_be_rank, args=(rank, ranks, port, answers, work, arguments)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def _be_rank(
    rank: int, ranks: int, port: int, answers: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    answers.put(work(rank, ranks, *arguments))
    dist.barrier()
    dist.destroy_process_group()
