"""This process's rank, and its connection to the other ranks; without a launcher, it is the only one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tenfold.errors import MachineError, TrainingError
from tenfold.launch.detect import World, detect_world
from tenfold.transport.network.join import join
from tenfold.workers.channels import Channels, single_worker_channels

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, launcher="")
REASON_SECONDS = 2.0
"""Seconds that a rank waits for the reason after its wait for others was ended."""

ReportError = Callable[[BaseException], None]


def here() -> World:
    """Return this process's place among those that torchrun, mpirun or srun started."""
    world = detect_world()
    if world is not None:
        return world
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise MachineError(
                f"torch.distributed has {size} ranks here, but they were started by no launcher that is known; "
                f"start the program with torchrun, mpirun or srun"
            )
    return ALONE


@contextmanager
def joined(numel: int, device: torch.device, *, gradients: bool) -> Iterator[tuple[Channels, ReportError]]:
    """Yield the channels of this process, for a state of `numel` numbers, and a function that reports an error here.

    `gradients` says that gradients or an optimizer's state will be sent, too. An error that only says that the waiting
    was ended becomes the one that another rank reported.
    """
    world = here()
    if world.size == 1:
        yield single_worker_channels(numel, device), lambda _: None
        return
    others = join(world)
    transport = others.transport(numel, device=device)
    gradient_transport = others.transport(numel if gradients else 1, device=device)

    def report(error: BaseException) -> None:
        if not isinstance(error, TrainingError):  # such an error comes from another rank
            others.network.report_failure(error)

    try:
        yield Channels(transport, gradient_transport), report
    except TrainingError:
        failure = others.network.failure(within=REASON_SECONDS)
        if failure is not None:
            raise failure from None
        raise
