"""Steps of Muon with averaged gradients, in which the workers of one machine divide the orthogonalization.

All workers have the same gradients, momenta and weights, so that all would compute the same. Where it saves time, each
changes only its own part of the large matrices, and writes the result into the others' weights. The products of a part
of a stack of matrices have the same bits as those of the whole stack, as long as one thread computes them.
"""

import torch

from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_strategy
from tenfold.training import Replica
from tenfold.training.optimizers.block_division import assign_matrices, large_stacks, stacks_worth_sharing
from tenfold.training.optimizers.make_optimizer import make_optimizer
from tenfold.training.optimizers.muon import Muon, Shape
from tenfold.transport import SharedMemoryTransport
from tenfold.workers.channels import Channels
from tenfold.workers.task import Task, make_network


class DividedStep:
    """One worker's part of every step."""

    def __init__(self, replica: Replica, optimizer: Muon, transport: SharedMemoryTransport) -> None:
        self._optimizer = optimizer
        self._transport = transport
        stacks = large_stacks(optimizer)
        own = assign_matrices(list(stacks.values()), transport.size)[transport.rank]
        optimizer.own = dict(zip(stacks, own, strict=True))
        self._slices = []
        for (parameter, (_, rows, columns)), part in zip(stacks.items(), own, strict=True):
            start = (parameter.data_ptr() - replica.flat.vector.data_ptr()) // parameter.element_size()
            size = rows * columns
            self._slices.append(slice(start + part.start * size, start + part.stop * size))

    def step(self) -> None:
        """Update this worker's part of the weights, and wait until the others have written theirs into the rest."""
        self._optimizer.step()
        self._transport.copy_to_others(self._slices)


def divide_steps(replica: Replica, channels: Channels, strategy: Strategy) -> DividedStep | None:
    """Return this worker's part of the steps, or None where every worker should take whole steps.

    A worker may write into another's weights only after that one has computed its gradient: averaging waits for all.
    """
    transport, optimizer = channels.transport, replica.optimizer
    if not isinstance(transport, SharedMemoryTransport) or not isinstance(optimizer, Muon):
        return None
    if channels.is_elastic or not strategy.always_exact or torch.get_num_threads() > 1:
        return None
    return DividedStep(replica, optimizer, transport) if stacks_worth_sharing(optimizer, transport.size) else None


def shared_stacks(task: Task, workers: int | None = None) -> list[Shape]:
    """Return the stacks of matrices that worker processes of this task share; none where they take whole steps.

    `workers` is how many there are, if not the task's own number.
    """
    training, machine = task.experiment.training, task.experiment.machine
    if training.optimizer != "muon" or task.division.average != "gradients":
        return []
    if machine.on_failure == "continue" or task.threads > 1 or not make_strategy(task.division).always_exact:
        return []
    optimizer = make_optimizer(training, make_network(task))
    return list(stacks_worth_sharing(optimizer, workers or task.workers).values())
