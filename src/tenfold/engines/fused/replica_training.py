"""The replicas of one task, as rows of one matrix on one device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tenfold.data import order
from tenfold.engines.fused.fused_training import FusedTraining, Seed, make_fused, resident_numbers, select
from tenfold.engines.fused.lockstep import Lockstep, find_diverged
from tenfold.engines.fused.stacked_rounds import StackedRounds
from tenfold.engines.recording import Outcome
from tenfold.errors import ModelError, StoreError
from tenfold.mixing.rate_scaling import rate_scale, warmup_epochs
from tenfold.runs import Emit, Stopwatch, Warned, checkpoint, tensor_file
from tenfold.runs.checkpoint import Resumption
from tenfold.training.evaluation import EvaluatedShare
from tenfold.workers.messages import Evaluated, Saved
from tenfold.workers.model_errors import check_metrics, check_outputs, make_divergence_error
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task


class ReplicaTraining(FusedTraining):
    """The replicas of one task, which average in rounds."""

    def __init__(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> None:
        training, division = task.experiment.training, task.division
        self.task = task
        self.emit = emit
        self.resumption = resumption
        self.by_gradients = division.average == "gradients"
        fused = make_fused(
            task,
            task.workers,
            scale=rate_scale(task.experiment),
            warmup=warmup_epochs(task.experiment),
            gradients_only=self.by_gradients,
        )
        lockstep = Lockstep(fused, [len(shard) for shard in task.shards], training.samples_per_step)
        super().__init__(fused, lockstep, training.epochs, stopwatch, emit)
        self.rounds = StackedRounds(division, fused, [float(len(shard)) for shard in task.shards])
        self.supervisor = Supervisor(task, stopwatch, emit, resumption.manifest if resumption else None)
        self.best: dict[str, Any] | None = None
        self._numbers = resident_numbers(task.splits.train)
        self.loss, self.samples = 0.0, 0.0

    def train(self) -> Outcome:
        """Train to the end."""
        if self.resumption is not None:
            self._resume(self.resumption.state(0))
        self.supervisor.start(resumed=self.resumption is not None)
        self.train_epochs([self.emit])
        self._finish()
        return Outcome.of(self.supervisor)

    def seeds(self) -> list[Seed]:
        """Return a seed for each rank, as its worker would have."""
        return [(self.task.experiment.training.seed, self.epoch, rank) for rank in range(self.task.workers)]

    def orders(self) -> list[Tensor]:
        """Return the order in which each rank visits its shard."""
        self.loss, self.samples = 0.0, 0.0
        seed = self.task.experiment.training.seed
        orders = [order(shard, seed, self.epoch, rank) for rank, shard in enumerate(self.task.shards)]
        return [select(self._numbers, one) for one in orders]

    def after_step(self, step: int) -> None:
        """Carry out the round that is due."""
        if self.by_gradients:
            self.rounds.step_by_gradients(self.lockstep.sizes[step - 1])
        self.rounds.average_weights_if_due(self.first_step + step)

    def check_metrics(self) -> bool:
        """Try the user's own metrics on the first replica; one that fails stops the run."""
        self.time.lap("compute")
        check_metrics(self.task, self.fused.stack.network_at(0))
        if text := check_outputs(self.task, self.fused.stack.network_at(0)):
            self.emit(Warned(at=self.stopwatch.now(), text=text))
        self.time.lap("evaluate")
        return False

    def logs_after(self, step: int) -> bool:
        """Return what the task's `log_every` says."""
        return self.task.logs_after(step)

    def log(self, step: int, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Report the loss of rank 0 and the spread of the replicas, and stop the run if any rank diverged."""
        rank = find_diverged(sums)
        if rank is not None:
            first = self.diverged_at_once(rank)
            raise make_divergence_error(self.task, sums[rank], step, rank, from_the_start=first)
        self.emit_losses(self.emit, step, sums[0], counts[0])
        self.emit_spread(self.emit, step, self.rounds.take_distances_from_mean())
        self.loss, self.samples = self.loss + sum(sums), self.samples + sum(counts)

    def evaluates_after(self, step: int) -> bool:
        """Return what the task's `evaluate_every` says."""
        return step in self.task.evaluation_steps

    def evaluate(self) -> bool:
        """Evaluate the mean of all replicas, which then continue from their own weights."""
        with self._evaluated_mean() as share:
            seconds = self.time.seconds
            message = Evaluated(epoch=self.epoch, step=self.last_step, seconds=seconds, share=share)
            return self.supervisor.decide([message]).stop

    def end_epoch(self) -> bool:
        """Evaluate the mean of all replicas, which then continue from their own weights."""
        with self._evaluated_mean() as share:
            decision = self.supervisor.decide([self.epoch_trained(self.loss, self.samples, share)])
            if decision.best and self.task.experiment.training.patience is not None:
                self.best = self.fused.state(0)
        return decision.stop

    @contextmanager
    def _evaluated_mean(self) -> Iterator[EvaluatedShare | None]:
        """Give all replicas their mean, and yield what the evaluation part says of it; then put the weights back."""
        own = self.fused.stack.matrix.clone()
        self.rounds.use_mean_of_replicas()
        yield self.evaluated_while_training(self.task, 0)
        self.fused.stack.matrix.copy_(own)

    def save(self) -> None:
        """Save the state of all replicas."""
        folder, problem = self.task.checkpoints, ""
        if folder is not None:
            state = {
                "replicas": self.fused.tensors(),
                "steps": self.fused.steps,
                "rounds": self.rounds.state(),
                "epoch": self.epoch,
                "best": self.best,
                "seconds": self.time.seconds,
                "times": self.time.times,
            }
            try:
                tensor_file.save(state, folder / checkpoint.file_name(self.epoch, 0))
            except StoreError as error:
                problem = str(error)
        self.supervisor.decide([Saved(epoch=self.epoch, seconds=self.time.seconds, problem=problem)])
        self.time.lap("save")

    def _resume(self, state: dict[str, Any]) -> None:
        own = self.fused.tensors()
        try:
            for name, tensor in state["replicas"].items():
                own[name].copy_(tensor)
        except (RuntimeError, KeyError) as error:
            raise ModelError(f"the checkpoint does not fit model {self.task.experiment.model.name}: {error}") from None
        self.rounds.load(state["rounds"])
        self.fused.steps, self.epoch, self.best = state["steps"], state["epoch"], state["best"]
        self.time.seconds, self.time.times = state["seconds"], dict(state["times"])

    def _finish(self) -> None:
        self.time.skip()
        self.rounds.use_mean_of_replicas()
        if not self.task.ends_equal(self.fused.steps):
            self.time.lap("communicate")
        if self.best is not None:
            self.fused.load(0, self.best)
        share = self.evaluated_at_the_end(self.task, 0)
        self.time.lap("evaluate")
        moved = int(max(self.rounds.bytes_moved))
        self.supervisor.decide([self.finished(0, self.fused.steps, share, bytes_moved=moved)])
