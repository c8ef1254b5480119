"""What all workers of a run share: the experiment, its data, and what follows from both."""

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenfold.common.catalog import MODELS
from tenfold.data import Part, Splits, batch_sizes, make_shards, order
from tenfold.data.part import change_main_output
from tenfold.data.splitting import Shard
from tenfold.data.streams import StreamPart, check_stream_shards
from tenfold.experiment import Experiment, Parallel
from tenfold.machine.cores import NOT_PINNED, CoreMap
from tenfold.mixing import is_round_due
from tenfold.mixing.builders import make_strategy
from tenfold.models import build
from tenfold.models.activation_checkpointing import checkpoint_activations
from tenfold.models.networks import add_scaling
from tenfold.runs import stored_predictions
from tenfold.training import flat_size
from tenfold.training.evaluation import EvaluatedShare, share_of

FEWEST_STEPS = 10
"""A run with fewer steps is warned about."""


@dataclass(frozen=True)
class Task:
    """An experiment with its data at hand; the same value on every worker."""

    experiment: Experiment
    splits: Splits
    threads: int
    """The threads of each worker."""
    cores: CoreMap = NOT_PINNED
    """The cores that each worker is pinned to."""
    checkpoints: Path | None = None
    """The folder for checkpoints; None if none are saved."""
    expects_few_steps: bool = False
    """Whether a run of very few steps is meant to be one, as that of `partial_fit`."""

    @property
    def workers(self) -> int:
        """How many replicas there are."""
        return self.experiment.parallel.workers

    @property
    def evaluation_part(self) -> Part | None:
        """The part that is evaluated after each epoch."""
        return self.splits.validation or self.splits.test

    @property
    def evaluation_part_name(self) -> str:
        """Its name: validation or test."""
        return "validation" if self.splits.validation is not None else "test"

    @property
    def kept_while_training(self) -> int:
        """The most bytes of outputs to keep at an evaluation: the last ones for a validation part are stored."""
        training = self.experiment.training
        stored = self.splits.validation is not None and training.save_predictions and training.patience is None
        return stored_predictions.LIMIT if stored else 0

    @cached_property
    def shards(self) -> list[Shard]:
        """Return each replica's sample numbers; of a stream, only how many they are."""
        parallel = self.experiment.parallel
        train = self.splits.train
        if isinstance(train, StreamPart):
            check_stream_shards(parallel.shards)
            return make_shards(len(train), self.workers, "contiguous")
        targets = train.read_targets() if parallel.shards == "label-skew" else train.targets
        return make_shards(
            targets if targets is not None else len(train),
            self.workers,
            parallel.shards,
            seed=self.experiment.data.split_seed,
            alpha=parallel.skew,
            fractions=parallel.fractions,
        )

    def visits(self, worker: int, epoch: int) -> tuple[Part, torch.Tensor]:
        """Return what a worker reads in an epoch: a part, and sample numbers in the order of the visits."""
        train, shard = self.splits.train, self.shards[worker]
        if isinstance(train, StreamPart):
            return train.shard(worker, self.workers), torch.arange(len(shard)) + epoch * len(shard)
        return train, order(shard, self.experiment.training.seed, epoch, worker)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of the replica with the largest shard; one with fewer batches only joins the rounds at the end."""
        return len(self.batch_sizes)

    @cached_property
    def parallel(self) -> Parallel:
        """The experiment's parallel, with the steps between rounds as a number."""
        return self.experiment.parallel.counted(self.steps_per_epoch)

    @cached_property
    def batch_sizes(self) -> list[tuple[int, ...]]:
        """For each step of an epoch, how many samples each replica has; 0 when it has none left."""
        size = self.experiment.training.samples_per_step
        return list(zip_longest(*(batch_sizes(len(shard), size) for shard in self.shards), fillvalue=0))

    @cached_property
    def evaluation_steps(self) -> frozenset[int]:
        """The steps of an epoch, except the last, after which the evaluation part is evaluated."""
        if self.evaluation_part is None:
            return frozenset()
        last = self.steps_per_epoch
        every = max(1.0, self.experiment.training.evaluate_every * last)
        return frozenset(step for n in range(1, int(last / every) + 1) if 0 < (step := round(n * every)) < last)

    def logs_after(self, step: int) -> bool:
        """Return whether to log after this step of the epoch; a short window at its end is joined to the last."""
        every, last = self.experiment.training.log_every, self.steps_per_epoch
        return step == last or (step % every == 0 and (last - step) * 2 >= every)

    def ends_equal(self, steps: int) -> bool:
        """Return whether all replicas are equal after this number of steps, so that averaging them changes nothing."""
        parallel = self.parallel
        if self.workers == 1:
            return True
        if not make_strategy(parallel).always_exact:
            return False
        pace, first = parallel.steps_between_rounds, parallel.local_after
        return parallel.average == "gradients" or is_round_due(steps, pace, first)

    def share(self, part: Part, rank: int, size: int | None = None) -> torch.Tensor:
        """Return the sample numbers of a part that one of `size` ranks (default: all workers) evaluates."""
        return share_of(len(part), rank, size or self.workers)


def describe_few_steps(task: Task) -> str:
    """Return a warning if the optimizer takes so few steps in the whole run that it can hardly learn; "" if not.

    A run with `data.limit` is a quick test, and L-BFGS searches in each step.
    """
    training = task.experiment.training
    steps = task.steps_per_epoch * training.epochs
    few_are_meant = task.expects_few_steps or training.needs_closure
    if steps >= FEWEST_STEPS or few_are_meant or task.experiment.data.limit is not None:
        return ""
    workers = f" x {task.workers} workers" if task.workers > 1 else ""
    return (
        f"the whole run has {steps} step{'s' * (steps > 1)}, too few to learn much: {len(task.splits.train):,} samples "
        f"in batches of {training.samples_per_step}{workers}, {training.epochs} "
        f"epoch{'s' * (training.epochs > 1)}; use more epochs or a smaller batch_size"
    )


def weight_bytes(task: Task) -> int:
    """Return the bytes of one replica's state."""
    return 4 * flat_size(make_network(task))


def make_network(task: Task) -> nn.Module:
    """Return the network that every replica starts from.

    The built-in ones keep their channels last, with which convolutions are up to 1.5 times faster on CPU. A user's own
    may flatten with `view`, and L-BFGS does, which both need the usual layout.
    """
    experiment, splits = task.experiment, task.splits
    network = build(experiment.model, splits.shape, splits.outputs, seed=experiment.training.seed)
    if splits.scaling is not None:
        add_scaling(network, splits.scaling, change_main_output)
    if experiment.model.name in MODELS and not experiment.training.needs_closure:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if experiment.training.activation_checkpointing:
        checkpoint_activations(network, experiment.training.activation_checkpointing)
    return network


# The messages between a worker and its coordinator. All workers send messages of the same kind, one after another.
#
# Where lost workers are replaced, the last messages below are sent in between, whenever the members change.


@dataclass(frozen=True, kw_only=True)
class EpochTrained:
    """An epoch is over: what this worker trained on, and what its share of the evaluation part says of the model."""

    epoch: int
    step: int
    seconds: float
    loss: float
    """Sum over samples."""
    samples: int
    share: EvaluatedShare | None
    num_correct: float = 0.0
    """How many of its samples were classified correctly, of the `num_labeled` whose class was compared."""
    num_labeled: int = 0


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What this worker's share of the evaluation part says of the model, in the middle of an epoch."""

    epoch: int
    step: int
    seconds: float
    share: EvaluatedShare | None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """This worker's checkpoint of an epoch is on disk, or could not be written."""

    epoch: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """This worker is done: what its share of the test part says, its times, and from rank 0 the weights."""

    step: int
    seconds: float
    times: dict[str, float]
    bytes_moved: int
    share: EvaluatedShare | None
    weights: dict[str, Any] | None
    memory: int = 0
    """The most memory that the worker's process has had in use, in bytes."""


Message = Evaluated | EpochTrained | Saved | Finished


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do after an epoch: continue or stop; whether it was the best so far; whether it can be resumed from."""

    stop: bool = False
    best: bool = False
    saved: bool = True
    loss: float | None = None
    """After an epoch: the loss on the evaluation part, or in training where there is none."""
    metric: float | None = None
    """After an epoch: the first metric, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Paused:
    """This worker has paused because the members change, and reports how far it has got."""

    rounds: int
    """How many rounds of its training it has completed."""
    mixed: int
    """The last step, over the run, whose work is part of such a round."""
    passed: int
    """The last join point that it has passed, see `ElasticChannels.reach_join_point`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationBegan:
    """This worker begins an evaluation, which would have to be repeated if others joined before it ends."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """This worker, which replaces a lost one, waits for its weights."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """A member's state, for the workers that join."""

    membership: int
    step: int
    """The last step that the state includes, over the run."""
    state: bytes


@dataclass(frozen=True, kw_only=True)
class Joining:
    """The workers that join, at the first join point that a member passes with a number of at least `point`."""

    workers: tuple[int, ...]
    partner: int
    """The member whose state they copy."""
    point: int


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The workers that take part from now on."""

    number: int
    members: tuple[int, ...]
    rounds: int = 0
    """How many rounds the furthest of them has completed; the others do not take part in these any more."""
    joining: Joining | None = None


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What a worker that joins needs: the membership, and a partner's state."""

    membership: Membership
    state: bytes
