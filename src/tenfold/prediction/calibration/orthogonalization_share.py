"""The share of a step of Muon that workers can divide among themselves."""

import statistics
from time import thread_time

import torch

from tenfold.machine.cores import using_threads
from tenfold.training import Replica, choose_loss
from tenfold.training.optimizers.muon import Muon
from tenfold.workers.task import Task, make_network
from tenfold.workers.trainers.shared_orthogonalization import large_stacks

TURNS, WARMUP = 20, 5
"""Steps of each kind, and how many of them do not count."""


def measure_orthogonalization_share(task: Task) -> float:
    """Return how much of a step's CPU time the orthogonalization of large matrices takes, with one thread."""
    training = task.experiment.training
    replica = Replica(make_network(task), training, choose_loss(training, task.splits.classes), steps_per_epoch=10**6)
    assert isinstance(replica.optimizer, Muon)
    nothing = dict.fromkeys(large_stacks(replica.optimizer), slice(0, 0))
    rows = torch.arange(training.samples_per_step) % len(task.splits.train)
    [(x, y)] = task.splits.train.batches([rows])
    times: dict[bool, list[float]] = {True: [], False: []}
    with using_threads(1), torch.random.fork_rng(devices=[]):
        for whole in (True, False) * TURNS:
            replica.optimizer.own = {} if whole else nothing
            started = thread_time()
            replica.step(x, y)
            times[whole].append(thread_time() - started)
    step, rest = (statistics.median(times[whole][WARMUP:]) for whole in (True, False))
    return max(0.0, 1 - rest / step)
