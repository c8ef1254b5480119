"""Ranks as threads of one process, mixing in real shared memory through `tenfold.loop`."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tenfold.experiment import Parallel
from tenfold.loop.averaging import LoopWorker, loop_worker
from tenfold.training import flat_size
from tenfold.training.flat_weights import exchange_size, flat_dtype
from tenfold.transport import Segment, SharedMemoryTransport
from tenfold.workers.channels import Channels

T = TypeVar("T")
State = dict[str, Tensor]


def network(seed: int = 0, *, norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 2))


def data(seed: int, samples: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 4, generator=generator), torch.randint(0, 2, (samples,), generator=generator)


def state_of(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1} | options)


def backward(model: nn.Module, seed: int) -> None:
    x, y = data(seed)
    nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    backward(model, seed)
    optimizer.step()


def together(size: int, model: nn.Module, life: Callable[[int, Channels], T]) -> list[T]:
    """Return what each rank's life gives; the first error ends all."""
    shared = [Segment.create(size, numel, flat_dtype(model)) for numel in (flat_size(model), exchange_size(model))]
    results: dict[int, T] = {}
    errors: list[tuple[int, BaseException]] = []

    def live(rank: int, links: Channels) -> None:
        try:
            results[rank] = life(rank, links)
        except BaseException as error:
            errors.append((rank, error))

    def opened(rank: int) -> Channels:
        weights, second = (SharedMemoryTransport(Segment.attach(segment.name), rank) for segment in shared)
        return Channels(weights, second)

    threads = [threading.Thread(target=live, args=(rank, opened(rank)), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for segment in shared:
        segment.close()
    assert not any(thread.is_alive() for thread in threads), "the ranks hang"
    if errors:
        raise errors[0][1]
    return [results[rank] for rank in range(size)]


Loop = Callable[[int, nn.Module, torch.optim.Optimizer, LoopWorker], Any]


def train(
    size: int,
    loop: Loop,
    *,
    make: Callable[[int], nn.Module] = lambda rank: network(rank),
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    samples: Callable[[int], float] = lambda rank: 1.0,
    **parallel: Any,
) -> list[nn.Module]:
    """Run a loop on every rank inside `average`; return the models it leaves."""
    models = [make(rank) for rank in range(size)]  # here: building draws from the one global generator
    chosen = Parallel(**{"workers": size, "strategy": "allreduce", "sync_every": 1} | parallel)

    def life(rank: int, links: Channels) -> nn.Module:
        made = optimizer(models[rank])
        with loop_worker(models[rank], made, chosen, links, samples(rank)) as worker:
            loop(rank, models[rank], made, worker)
        return models[rank]

    return together(size, models[0], life)
