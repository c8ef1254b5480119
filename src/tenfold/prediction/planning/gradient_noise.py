"""How noisy gradients are, seen from how far replicas move apart between two rounds."""

import math

import torch
from torch import Tensor

from tenfold.data import batches
from tenfold.machine import devices
from tenfold.training import Replica, choose_loss
from tenfold.workers.task import Task, make_network

REPLICAS, STEPS = 8, 2
RATE = 1e-3
"""Small enough for the gradient to stay what it was."""


def noise_batch(moves: Tensor, batch_size: int, steps: int) -> float:
    """Return the batch size at which noise and gradient are equally large, tr(Sigma) / |G|^2; infinite for no gradient.

    `moves` [replicas, weights] are D_i = w_i - w_0 of replicas that took H steps of plain SGD from w_0. With
    V = sum_i |D_i - mean D|^2 / (N - 1), it is b H V / (|mean D|^2 - V / N): the "simple noise scale" of
    McCandlish et al. 2018, "An Empirical Model of Large-Batch Training".
    """
    replicas, mean = len(moves), moves.mean(dim=0)
    spread = float((moves - mean).square().sum()) / (replicas - 1)
    signal = float(mean.square().sum()) - spread / replicas
    return batch_size * steps * spread / signal if signal > 0 else math.inf


def data_factor(batch: float, reference: float, noise: float) -> float:
    """Return how many times the samples a global batch size needs for the same progress as the reference does.

    Steps to a given loss go with 1 + noise / B (McCandlish et al. 2018), hence samples with B + noise.
    """
    return 1.0 if math.isinf(noise) else (batch + noise) / (reference + noise)


def measure_noise(task: Task, weights: dict[str, Tensor]) -> float:
    """Return the noise batch of a network with these weights, by replicas that each take a few steps from them."""
    training = task.experiment.replace(
        optimizer="sgd", momentum=0.0, lr=RATE, schedule="constant", warmup=0.0, clip=None, optimizer_options={}
    ).training
    part, batch = task.splits.train, training.samples_per_step
    count = REPLICAS * STEPS
    batch = max(1, min(batch, len(part) // count))
    generator = torch.Generator().manual_seed(training.seed)
    visits = list(batches(torch.randperm(len(part), generator=generator)[: count * batch], batch))
    device, loss = devices.resolve(task.experiment.machine.device), choose_loss(training, task.splits.classes)
    moves = []
    for replica_visits in (visits[at : at + STEPS] for at in range(0, count, STEPS)):
        network = make_network(task).to(device)
        network.load_state_dict(weights)
        replica = Replica(network.train(), training, loss, steps_per_epoch=STEPS)
        before = _learned(replica)
        for x, y in replica.feed(part, replica_visits):
            replica.step(x, y)
        moves.append(_learned(replica) - before)
    return noise_batch(torch.stack(moves), batch, STEPS)


def _learned(replica: Replica) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in replica.learning])
