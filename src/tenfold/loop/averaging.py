"""`tenfold.average`: averaging for your own training loop."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tenfold.common.imports import warn_user
from tenfold.engines.launched_rank import describe_software, describe_sources, describe_tensors, require_same
from tenfold.engines.prepare import validate_combination
from tenfold.errors import ExperimentError, ModelError, TrainingError
from tenfold.experiment import Experiment, Parallel
from tenfold.loop.sharding import describe_shards, here
from tenfold.models.networks import require_own_memory
from tenfold.training import FlatState, flat_size
from tenfold.training.flat_weights import exchange_size, flat_dtype
from tenfold.transport.meeting import join
from tenfold.workers.channels import Channels, single_worker_channels
from tenfold.workers.rounds import ReplicaRounds, average_tensors
from tenfold.workers.task import Mixing, Resolved, describe_line_searches


class LoopReplica:
    """The model and the optimizer of a training loop as a replica for rounds; `vector` holds its state until released.

    `lr` is the learning rate that all ranks use in a round, as their schedules may be at different steps.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, vector: Tensor) -> None:
        self.flat = FlatState(model, vector)
        self.batch_norm = self.flat.batch_norm
        self.optimizer = optimizer
        self.lr = self.optimizer_lr
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self.trainable_parameters: list[
            nn.Parameter
        ] = [  # in the model's order: groups made from sets differ between ranks
            parameter for parameter in model.parameters() if id(parameter) in optimized and parameter.requires_grad
        ]

    @property
    def optimizer_lr(self) -> float:
        """The learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def skips(self) -> bool:
        """Return whether a GradScaler has found a gradient that is no number, and lets the optimizer skip this step."""
        found_inf = getattr(self.optimizer, "found_inf", None)
        return isinstance(found_inf, Tensor) and bool(found_inf.any())

    @torch.no_grad()
    def unscale(self) -> None:
        """Divide the gradients by the scale, once, which a GradScaler leaves to a fused optimizer."""
        scale = getattr(self.optimizer, "grad_scale", None)
        if isinstance(scale, Tensor):
            for parameter in self.trainable_parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]


REASON_SECONDS = 2.0
"""Seconds that a rank waits for the reason after its wait for others was ended."""

ReportError = Callable[[BaseException], None]


@contextmanager
def joined(
    numel: int, device: torch.device, dtype: torch.dtype, *, gradient_numel: int, describe: Callable[[], dict[str, str]]
) -> Iterator[tuple[Channels, ReportError]]:
    """Yield the channels of this process, for a state of `numel` numbers, and a function that reports an error here.

    `gradient_numel` is how many numbers a round of gradients or of an optimizer's state exchanges, 0 where there are
    none. Raises ExperimentError if `describe` does not return the same on all ranks. An error that only says that the
    waiting was ended becomes the one that another rank reported.
    """
    world = here()
    if world.size == 1:
        yield single_worker_channels(numel, device, dtype=dtype), lambda _: None
        return
    others = join(world)
    require_same(others.network, describe(), "give tenfold.average the same model and arguments on every rank")
    transport = others.transport(numel, dtype, device)
    gradient_transport = others.transport(max(1, gradient_numel), dtype, device)

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


# Rounds among ranks whose training loops run independently.
#
# The loops of ranks may take different numbers of steps: a GradScaler skips one, or a loader has a batch less.
# Therefore every rank announces before a round which round it is ready for, or that it is done. Ranks that are done
# join the rounds of the others until all are done. This costs a gather of one number per round.

DONE, FIRST_MEAN = -1.0, -2.0
"""Instead of the number of a round: the rank has left its block, or waits in the first block of its `mean()`."""


class LoopWorker:
    """This rank's part in averaging among the loops."""

    def __init__(self, replica: LoopReplica, parallel: Parallel, channels: Channels, samples: float = 1.0) -> None:
        self.rank, self.size = channels.transport.rank, channels.transport.size
        self.steps = 0
        """Steps that the optimizer has taken."""
        self._means = 0
        self._channels = channels
        self._replica = replica
        self._gradients = parallel.average == "gradients"
        counts = self._agree(parallel, samples)
        channels.transport.broadcast()
        replica.batch_norm.update_reference_means()
        self._rounds = ReplicaRounds(Mixing.of(parallel), replica, channels, counts)

    @property
    def rounds(self) -> int:
        return self._rounds.count

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent in rounds, as a network would count them."""
        return int(self._rounds.bytes_moved[0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Register hooks on the optimizer's steps."""
        optimizer = self._replica.optimizer
        hooks = [optimizer.register_step_post_hook(self._after_step)]
        if self._gradients:
            hooks.append(optimizer.register_step_pre_hook(self._before_step))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """Give the model the mean of all ranks for a while; every rank must enter, and gets its own weights back."""
        self._means += 1
        self._wait_for_all(FIRST_MEAN + 1 - self._means)
        vector = self._replica.flat.vector
        own = vector.clone()
        self._use_mean_of_ranks()
        try:
            yield
        finally:
            vector.copy_(own)

    def end(self) -> None:
        """Wait until all ranks are done, and take the mean of all."""
        self._wait_for_all(DONE)
        self._use_mean_of_ranks()

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        if self._replica.skips:
            return
        self._replica.unscale()
        self._rounds.average_gradients(self._busy(self._announce(self._rounds.count)))

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        """Count the step, and average the weights if a round is due."""
        if self._replica.skips:
            return
        self.steps += 1
        if self._gradients or not self._rounds.is_due(self.steps):
            return
        if not self._rounds.upcoming.is_idle:
            self._announce(self._rounds.count)
        self._rounds.average_weights()

    def _announce(self, number: float) -> list[float]:
        """Tell the others which round this rank is ready for, and return the rounds of all ranks.

        The first rank that is not done sets the learning rate.
        """
        gathered = self._channels.transport.gather([number, self._replica.optimizer_lr])
        self._replica.lr = next((lr for other, lr in gathered if other >= 0), self._replica.lr)
        return [other for other, _ in gathered]

    @torch.no_grad()
    def _wait_for_all(self, reason: float) -> None:
        """Join the rounds of the ranks that are not done yet; raise an error if they wait for something else then."""
        while max(numbers := self._announce(reason)) >= 0:
            self._rounds.count = int(max(numbers))
            if self._gradients:
                self._sit_out(self._busy(numbers))
            else:
                self._rounds.average_weights()
        odd = next((rank for rank, other in enumerate(numbers) if other != reason), None)
        if odd is not None:
            here, there = _describe_wait(reason), _describe_wait(numbers[odd])
            raise ExperimentError(
                f"rank {self.rank} {here}, but rank {odd} {there}; all ranks must enter `mean()` equally often; put "
                "`with ranks.mean():` around `if ranks.rank == 0:`, not inside it"
            )

    def _sit_out(self, samples: list[float]) -> None:
        """Join an average of gradients with weight 0."""
        self._channels.gradient_transport.buffer.zero_()
        average_tensors(self._channels, self._rounds.begin(), [], samples)

    @torch.no_grad()
    def _use_mean_of_ranks(self) -> None:
        """Take the mean of all; where gradients are averaged, of those that have taken every step."""
        if self._gradients:
            steps = [numbers[0] for numbers in self._channels.transport.gather([float(self.steps)])]
            self._rounds.use_mean_of_replicas([float(count == max(steps)) for count in steps])
        else:
            self._rounds.use_mean_of_replicas()

    def _busy(self, numbers: list[float]) -> list[float]:
        """Return the weight of each rank in a round, 0 for those that are done."""
        return [0.0 if number < 0 else count for number, count in zip(numbers, self._rounds.samples, strict=True)]

    def _agree(self, parallel: Parallel, samples: float) -> list[float]:
        """Return the weight of each rank; raise an error if the ranks have different settings."""
        if not 0 < samples < float("inf"):
            raise ExperimentError(f"samples is {samples}; it should be above 0")
        shapes = [tuple(parameter.shape) for parameter in self._replica.trainable_parameters]
        content = f"{parallel.model_dump_json()} {self._replica.flat.vector.numel()} {shapes}"
        digest = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=6).digest(), "big")
        gathered = self._channels.transport.gather([float(digest), samples])
        odd = [rank for rank, (other, _) in enumerate(gathered) if other != gathered[0][0]]
        if odd:
            raise ExperimentError(
                f"rank {odd[0]} averages another model than rank 0, or uses other settings; "
                f"call tenfold.average with the same arguments on every rank"
            )
        return [count for _, count in gathered]


def _describe_wait(reason: float) -> str:
    return (
        "has left the block of tenfold.average" if reason == DONE else f"is in its `mean()` number {int(-reason) - 1}"
    )


DEFAULTS = Parallel()


def average(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: Any = DEFAULTS.strategy,
    sync_every: int | None = None,
    *,
    average: str = DEFAULTS.average,
    local_after: int = DEFAULTS.local_after,
    outer: Any = DEFAULTS.outer,
    compression: Any = DEFAULTS.compression,
    optimizer_state: str = DEFAULTS.optimizer_state,
    strategy_options: dict[str, Any] | None = None,
    outer_options: dict[str, Any] | None = None,
    compression_options: dict[str, Any] | None = None,
    samples: float = 1.0,
) -> "AveragingBlock":
    """Average the model with those of the other ranks, every `sync_every` steps of its optimizer.

    Under torchrun, mpirun or srun every rank runs the same loop on its own data (see `shard`); a program that is
    started alone runs as if this were not there. Inside the block

    - all begin with rank 0's weights, and leave it with the mean of all (for BatchNorm var = avg(var_i) + var(mean_i));
    - a step is a call of `optimizer.step`, so gradients may be accumulated over several batches; one that a GradScaler
      skips does not count;
    - ranks may take different numbers of steps: a rank that is done joins the rounds of the others.

    Before that, ranks compare the model's parameters and code, these arguments, their versions and the shards made so
    far; a difference is an error on all of them.

    The fields are those of an experiment's parallel, with the same defaults. `samples` is this rank's weight in a mean,
    equal for all by default. Yields a `LoopWorker` with `rank`, `size` and `steps`; within a block of its `mean()` the
    model is the mean of all ranks, to evaluate or to save it.
    """
    _check_kinds(model, optimizer)
    size = here().size
    names: dict[str, Any] = {"strategy": strategy, "average": average, "outer": outer, "compression": compression}
    experiment = Experiment(
        workers=size,
        sync_every=sync_every,
        local_after=local_after,
        strategy_options=strategy_options or {},
        outer_options=outer_options or {},
        compression_options=compression_options or {},
        optimizer="lbfgs" if type(optimizer).__name__ == "LBFGS" else "sgd",
        **names | {"optimizer_state": optimizer_state},
    )
    _check(experiment, model, optimizer)
    if text := describe_line_searches(experiment):
        warn_user(text)
    return AveragingBlock(model, optimizer, experiment.parallel, samples)


class AveragingBlock(AbstractContextManager[LoopWorker], ContextDecorator):
    """The result of `average`: a `with` block or a decorator that warns about optimizer steps outside of it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, parallel: Parallel, samples: float) -> None:
        self._make_block = partial(_averaged, model, optimizer, parallel, samples)
        self._reminder = optimizer.register_step_pre_hook(self._remind)

    def __enter__(self) -> LoopWorker:
        self._reminder.remove()
        self._block = self._make_block()  # a new one each time, for a function that is decorated and called twice
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    def _remind(self, *_: object) -> None:
        self._reminder.remove()
        warnings.warn(
            "optimizer.step was called outside the block of tenfold.average, so nothing is averaged; put "
            "`with tenfold.average(model, optimizer):` around the loop",
            stacklevel=3,
        )


@contextmanager
def _averaged(model: nn.Module, optimizer: Optimizer, parallel: Parallel, samples: float) -> Iterator[LoopWorker]:
    device = next(model.parameters()).device
    describe = partial(_describe, model, optimizer, parallel)
    gradient_numel = exchange_size(model) if parallel.needs_gradient_buffer else 0
    with (
        joined(flat_size(model), device, flat_dtype(model), gradient_numel=gradient_numel, describe=describe) as (
            channels,
            tell,
        ),
        loop_worker(model, optimizer, parallel, channels, samples) as worker,
    ):
        try:
            yield worker
        except BaseException as error:
            tell(error)
            raise


@contextmanager
def loop_worker(
    model: nn.Module, optimizer: Optimizer, parallel: Parallel, channels: Channels, samples: float = 1.0
) -> Iterator[LoopWorker]:
    """Join the other workers for the duration of the block; an error in it ends their wait, too."""
    with channels.gradient_transport, channels.transport:
        replica = LoopReplica(model, optimizer, channels.transport.buffer)
        try:
            worker = LoopWorker(replica, parallel, channels, samples)
            with worker.listening():
                yield worker
            worker.end()
        finally:
            replica.flat.release()


def _describe(model: nn.Module, optimizer: Optimizer, parallel: Parallel) -> dict[str, str]:
    """Return the settings that have to be equal on all ranks; where all take the same step, also the optimizer's."""
    settings = {field: f"{value}" for field, value in parallel.model_dump(mode="json").items()}
    described = {
        **settings,
        **describe_software(),
        **describe_tensors(model),
        **describe_sources(model.modules()),
        "optimizer": type(optimizer).__name__,
        "optimizer's parameters": f"{[len(group['params']) for group in optimizer.param_groups]}",
        **describe_shards(),
    }
    if parallel.average == "gradients":
        plain = {
            name: value for name, value in optimizer.defaults.items() if isinstance(value, int | float | str | tuple)
        }
        described |= {f"optimizer's {name}": f"{value}" for name, value in plain.items()}
    return described


def _check_kinds(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        given = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise ModelError(f"average takes a model (nn.Module) and its optimizer, in this order; it got {given}")


def _check(experiment: Experiment, model: nn.Module, optimizer: Optimizer) -> None:
    if experiment.parallel.is_asynchronous:
        raise ExperimentError(
            f'strategy = "{experiment.parallel.strategy}" has no rounds and works only in `tenfold train`; '
            f"use a strategy with rounds, such as butterfly or allreduce"
        )
    if experiment.parallel.sync_every == "epoch":
        raise ExperimentError(
            'sync_every = "epoch": the ends of epochs are not known in your own loop; give a number of steps'
        )
    validate_combination(Resolved.of(experiment))
    parameters = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
        raise ModelError("the optimizer has none of the model's parameters; create it with model.parameters()")
    if others := sum(
        id(parameter) not in parameters for group in optimizer.param_groups for parameter in group["params"]
    ):
        raise ModelError(
            f"the optimizer also trains {others} parameters outside the model, which would differ between ranks; "
            "pass average a module that has all of them, such as nn.ModuleList([model, loss])"
        )
    require_own_memory(model)
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise ModelError(f"the model is on {', '.join(sorted(devices))}; it must be on one device: model.to(device)")
