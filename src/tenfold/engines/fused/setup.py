"""What trainings of many replicas on one device have in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tenfold.data import Part
from tenfold.engines.fused.lockstep import Lockstep
from tenfold.errors import ExperimentError, ModelError
from tenfold.machine import cores, devices, memory
from tenfold.runs import Clock, Emit, Metric, Note, Warned
from tenfold.training import choose_loss, predict
from tenfold.training.fused.replicas import Fused, resident
from tenfold.training.graphs import slow
from tenfold.training.precision import multiplying
from tenfold.training.randomness import seed_everything, undisturbed
from tenfold.training.replica import plan_rates
from tenfold.workers.messages import Finished, Reviewed
from tenfold.workers.task import Task, make_network


def make_fused(
    task: Task, k: int, scale: float, warmup: float | None, *, apart: bool = False
) -> tuple[Fused, Tensor | None]:
    """Return k fused replicas of a task's network, and which of the resident samples the task trains on."""
    found = resident(task.splits.train)
    if found is None:
        raise ExperimentError(
            "replicas on one device share data that stay there, but these are read sample by sample; "
            "give tensors or arrays, and set data.loader_workers = 0"
        )
    training = task.experiment.training
    network = make_network(task).to(devices.resolve(task.experiment.machine.device))
    rates = plan_rates(training, steps_per_epoch=task.steps_per_epoch, rate_scale=scale, warmup=warmup)
    loss = choose_loss(training, task.splits.classes)
    way = task.experiment.machine.fused
    return Fused(network, k, training, loss, found[0], rates=rates, way=way, apart=apart), found[1]


def prepare_fused(fused: Fused, lockstep: Lockstep, epochs: int, clock: Clock, emits: Sequence[Emit]) -> None:
    """Choose how the replicas step, and tell of it."""
    trouble = fused.prepare(lockstep.shapes(epochs))
    if fused.trouble:
        raise ModelError(f"the model failed on its first batch: {fused.trouble}")
    for emit in emits:
        if fused.told:
            emit(Note(at=clock.now(), text=fused.told))
        if trouble:
            emit(Warned(at=clock.now(), text=slow(trouble)))


def numbers_of(part: Part) -> Tensor | None:
    """Return which of the resident samples a part is; None: all."""
    found = resident(part)
    return found[1] if found else None


def among(numbers: Tensor | None, visits: Tensor) -> Tensor:
    """Return which of the resident samples are visited."""
    return visits if numbers is None else numbers.index_select(0, visits.to(numbers.device))


def seed_replicas(fused: Fused, words: Sequence[tuple[int, int, int]]) -> None:
    """Let each replica draw from where it would draw alone, as far as the way of stepping allows."""
    chances = []
    for numbers in words if fused.has_own_chances else []:
        seed_everything(*numbers)
        chances.append(torch.get_rng_state())
    fused.seed(chances)
    seed_everything(*words[0])


def predictions(task: Task, fused: Fused, row: int, part: Part | None) -> Tensor | None:
    """Return what one replica says to a part."""
    if part is None:
        return None
    precision = task.experiment.training.precision
    return predict(fused.stack.shown(row), part, torch.arange(len(part)), precision=precision)


def train_metric(clock: Clock, name: str, value: float, step: int, epoch: int, seconds: float) -> Metric:
    """Return a number of the training curve."""
    return Metric(at=clock.now(), name=name, value=value, part="train", step=step, epoch=epoch, seconds=seconds)


def reviewed(epoch: int, step: int, seconds: float, loss: float, samples: int, outputs: Tensor | None) -> Reviewed:
    """Return the message that ends an epoch."""
    return Reviewed(epoch=epoch, step=step, seconds=seconds, loss=loss, samples=samples, outputs=outputs)


def finished_row(
    fused: Fused, row: int, steps: int, seconds: float, times: dict[str, float], moved: int, outputs: Tensor | None
) -> Finished:
    """Return the message that ends a training, with the weights of one replica."""
    weights = {name: tensor.cpu() for name, tensor in fused.state(row).items()}
    return Finished(step=steps, seconds=seconds, times=times, bytes_moved=moved, outputs=outputs, weights=weights)


@contextmanager
def on_device(task: Task) -> Iterator[None]:
    """Use the whole machine for a while, and leave generators and settings as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(task.experiment.machine.threads or cores.budget())
    memory.keep_freed()
    try:
        with undisturbed(), multiplying(task.experiment.training.precision):
            yield
    finally:
        torch.set_num_threads(before)
