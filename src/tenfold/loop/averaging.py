"""`average`: averages the replicas of a training loop, through the hooks of their optimizers."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tenfold.engines.validate import validate_mixing
from tenfold.errors import ExperimentError, ModelError
from tenfold.experiment import Division, Experiment
from tenfold.loop.loop_connection import here, joined
from tenfold.loop.loop_replica import LoopReplica
from tenfold.loop.loop_worker import LoopWorker
from tenfold.mixing import STRATEGIES
from tenfold.training import flat_size
from tenfold.workers.channels import Channels

DEFAULTS = Division()


def average(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: str = DEFAULTS.strategy,
    sync_every: int | None = None,
    *,
    average: str = DEFAULTS.average,
    local_after: int = DEFAULTS.local_after,
    outer: str = DEFAULTS.outer,
    compression: str = DEFAULTS.compression,
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
    - ranks may take different numbers of steps: who has left joins the rounds of those who are still busy.

    The fields are those of an experiment's division, with the same defaults. `samples` is this rank's weight in a mean,
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
    return AveragingBlock(model, optimizer, experiment.division, samples)


class AveragingBlock(AbstractContextManager[LoopWorker], ContextDecorator):
    """What `average` returns: a `with` block or a decorator, which warns of steps that are made without it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, division: Division, samples: float) -> None:
        self._make_block = partial(_averaged, model, optimizer, division, samples)
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
            "tenfold.average was called, but a step is made outside of its block, so that nothing is averaged; write "
            "`with tenfold.average(model, optimizer):` around the loop",
            stacklevel=3,
        )


@contextmanager
def _averaged(model: nn.Module, optimizer: Optimizer, division: Division, samples: float) -> Iterator[LoopWorker]:
    device = next(model.parameters()).device
    with (
        joined(flat_size(model), device, gradients=division.needs_gradient_buffer) as (channels, tell),
        loop_worker(model, optimizer, division, channels, samples) as worker,
    ):
        try:
            yield worker
        except BaseException as error:
            tell(error)
            raise


@contextmanager
def loop_worker(
    model: nn.Module, optimizer: Optimizer, division: Division, channels: Channels, samples: float = 1.0
) -> Iterator[LoopWorker]:
    """Join the other workers for the duration of the block; an error in it ends their wait, too."""
    with channels.gradient_transport, channels.transport:
        replica = LoopReplica(model, optimizer, channels.transport.buffer)
        try:
            worker = LoopWorker(replica, division, channels, samples)
            with worker.listening():
                yield worker
            worker.end()
        finally:
            replica.flat.release()


def _check_kinds(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        given = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise ModelError(f"average takes a model (nn.Module) and its optimizer, in this order; it got {given}")


def _check(experiment: Experiment, model: nn.Module, optimizer: Optimizer) -> None:
    if STRATEGIES[experiment.division.strategy].asynchronous:
        raise ExperimentError(
            f'strategy = "{experiment.division.strategy}" has no rounds, and needs `tenfold train`; '
            f"take one with rounds, such as butterfly or allreduce"
        )
    if experiment.division.sync_every == "epoch":
        raise ExperimentError(
            'sync_every = "epoch": your own loop does not say where epochs end; give a number of steps'
        )
    validate_mixing(experiment)
    parameters = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
        raise ModelError("the optimizer has none of the model's parameters; make it from model.parameters()")
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise ModelError(f"the model lies on {', '.join(sorted(devices))}; it must be on one device: model.to(device)")
