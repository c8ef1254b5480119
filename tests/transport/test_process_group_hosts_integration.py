"""The process group over several hosts, which are network namespaces; skipped where they cannot be made."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import start_program
from launched_program import enter_host
from launching import end_ranks, rank_environment
from network_hosts import Hosts
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tenfold

pytestmark = pytest.mark.timeout(120)
ADDRESS = ("10.213.0.1", 29500)


def start(hosts: Hosts, size: int, scenario: Any, folder: Path) -> list[Any]:
    """Let ranks play a scenario, the first two on the first host."""
    ranks = [rank_environment(rank, size, 2, ADDRESS) for rank in range(size)]
    return [
        start_program(be_rank, own, hosts.names[rank // 2], scenario, str(folder)) for rank, own in enumerate(ranks)
    ]


def be_rank(environment: dict[str, str], namespace: str, scenario: Any, folder: str) -> None:
    enter_host(namespace, environment["HOST"])
    os.environ.update(environment)
    torch.set_num_threads(1)
    assert tenfold.backend
    dist.init_process_group("tenfold")
    answer = scenario(dist.get_rank(), dist.get_world_size())
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


def answers(folder: Path, ranks: int) -> list[Any]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def numbers(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def everything(rank: int, size: int) -> list[Any]:
    """Return which operations gave what they should, and sums of their bits."""
    found: list[Any] = []
    inside = [range(at, min(at + 2, size)) for at in range(0, size, 2)]
    for numel in (0, 1, 5, 300_001):
        tensor = numbers(rank, numel)
        dist.all_reduce(tensor)
        parts = [sum((numbers(other, numel) for other in host), torch.zeros(numel)) for host in inside]
        found.append(torch.equal(tensor, sum(parts[1:], parts[0])))
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    found.append(bool((mean == (size - 1) / 2).all()))
    highest = torch.tensor([rank, -rank])
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    found.append(highest.tolist() == [size - 1, 0])
    for root in range(size):
        tensor = numbers(rank, 1000)
        dist.broadcast(tensor, root)
        found.append(torch.equal(tensor, numbers(root, 1000)))
    uneven = [torch.zeros(other + 1) for other in range(size)]
    dist.all_gather(uneven, numbers(rank, rank + 1))
    found += [torch.equal(part, numbers(other, other + 1)) for other, part in enumerate(uneven)]
    part = torch.zeros(4)
    dist.reduce_scatter(part, [torch.full((4,), float(other)) for other in range(size)])
    found.append(bool((part == size * rank).all()))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, f"from {rank}")
    found.append(objects == [f"from {other}" for other in range(size)])
    received = torch.zeros(5)
    send = dist.isend(numbers(rank, 5), (rank + 1) % size)
    found.append(dist.recv(received, (rank - 1) % size) == (rank - 1) % size)
    send.wait()
    found.append(torch.equal(received, numbers((rank - 1) % size, 5)))
    dist.monitored_barrier()
    first = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=first)
        found.append(tensor.tolist() == [2, 2])
    dist.barrier()
    return [found, train(rank), train(rank)]


def train(rank: int) -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 500)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (model(numbers(10 * step + rank, 8, 20)) ** 2).mean().backward()
        optimizer.step()
    return float(sum(parameter.double().sum() for parameter in model.parameters()))


@pytest.mark.parametrize("size", [3, 4])
def test_every_operation_over_two_hosts(hosts: Hosts, tmp_path: Path, size: int) -> None:
    assert end_ranks(start(hosts, size, everything, tmp_path)) == [0] * size
    found = answers(tmp_path, size)
    assert all(all(item[0]) for item in found), found
    assert {trained for item in found for trained in item[1:]} == {found[0][1]}


def lose_the_last(rank: int, size: int) -> str:
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.zeros(1000))
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing happened")


def test_a_rank_of_another_host_that_dies_is_named(hosts: Hosts, tmp_path: Path) -> None:
    end_ranks(start(hosts, 4, lose_the_last, tmp_path))
    for said in answers(tmp_path, 3):
        assert "3 (process" in said
