"""The replicas of a divided training, as rows of one matrix on one device."""

from typing import Any

from tenfold.data import order
from tenfold.engines.base import Outcome
from tenfold.engines.fused.lockstep import Lockstep, first_odd
from tenfold.engines.fused.setup import (
    among,
    finished_row,
    make_fused,
    predictions,
    prepare_fused,
    reviewed,
    seed_replicas,
    train_metric,
)
from tenfold.engines.fused.stacked_rounds import StackedRounds
from tenfold.errors import ModelError, StoreError
from tenfold.mixing.learning_rate import rate_scale, warmup_epochs
from tenfold.runs import Clock, Emit, checkpoint
from tenfold.runs.resumption import Resumption
from tenfold.workers.messages import Saved
from tenfold.workers.supervisor import Supervisor
from tenfold.workers.task import Task, diverged
from tenfold.workers.timekeeper import Timekeeper


class NodeTraining:
    """The virtual nodes of one task."""

    def __init__(self, task: Task, clock: Clock, emit: Emit) -> None:
        self.task = task
        self.clock = clock
        self.emit = emit
        training, division = task.experiment.training, task.experiment.division
        scale, warmup = rate_scale(division), warmup_epochs(task.experiment)
        self.by_gradients = division.average == "gradients"
        self.fused, self.numbers = make_fused(task, task.workers, scale, warmup, apart=self.by_gradients)
        self.lockstep = Lockstep(self.fused, [len(shard) for shard in task.shards], training.batch_size)
        self.rounds = StackedRounds(division, self.fused, [float(len(shard)) for shard in task.shards])
        self.time = Timekeeper(clock, emit, 0)
        self.epoch = 0
        self.best: dict[str, Any] | None = None

    def train(self, resumption: Resumption | None) -> Outcome:
        """Train to the end."""
        training = self.task.experiment.training
        supervisor = Supervisor(self.task, self.clock, self.emit, resumption.manifest if resumption else None)
        if resumption is not None:
            self._resume(resumption.state(0))
        supervisor.start(resumed=resumption is not None)
        prepare_fused(self.fused, self.lockstep, training.epochs - self.epoch, self.clock, [self.emit])
        self.time.begin()
        stopped = False
        while self.epoch < training.epochs and not stopped:
            loss, samples = self._train_epoch()
            stopped = self._review(supervisor, loss, samples)
            self.epoch = training.epochs if stopped else self.epoch + 1
            self._save(supervisor)
        self._finish(supervisor)
        return Outcome(supervisor.result, supervisor.weights, supervisor.outputs)

    def _train_epoch(self) -> tuple[float, int]:
        task, training, time = self.task, self.task.experiment.training, self.time
        time.epoch = self.epoch
        seed_replicas(self.fused, [(training.seed, self.epoch, rank) for rank in range(task.workers)])
        orders = [order(shard, training.seed, self.epoch, rank) for rank, shard in enumerate(task.shards)]
        first, loss, samples = self.epoch * task.steps_per_epoch, 0.0, 0.0
        time.skip()
        for step in self.lockstep.epoch([among(self.numbers, one) for one in orders]):
            if self.by_gradients:
                self.rounds.step_by_gradients(self.lockstep.sizes[step - 1])
            self.rounds.mix(first + step)
            if task.tells_after(step):
                sums, counts = self.lockstep.window(step)
                time.lap("compute")
                odd = first_odd(sums)
                if odd is not None:
                    raise diverged(task, sums[odd], first + step, odd)
                self._log(first + step, sums[0] / counts[0] if counts[0] else None)
                loss, samples = loss + sum(sums), samples + sum(counts)
        return loss, int(samples)

    def _log(self, step: int, loss: float | None) -> None:
        for name, value in (("loss", loss), ("lr", self.fused.rates.at(self.fused.steps - 1))):
            if value is not None:
                self.emit(train_metric(self.clock, name, value, step, self.epoch, self.time.seconds))
        self.time.tell()

    def _review(self, supervisor: Supervisor, loss: float, samples: int) -> bool:
        own = self.fused.stack.matrix.clone()
        self.rounds.consensus()
        step = (self.epoch + 1) * self.task.steps_per_epoch
        outputs = predictions(self.task, self.fused, 0, self.task.watched)
        verdict = supervisor.hear([reviewed(self.epoch, step, self.time.seconds, loss, samples, outputs)])
        if verdict.best and self.task.experiment.training.patience is not None:
            self.best = self.fused.state(0)
        self.fused.stack.matrix.copy_(own)
        self.time.lap("evaluate")
        return verdict.stop

    def _save(self, supervisor: Supervisor) -> None:
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
                checkpoint.save(state, folder / checkpoint.file_name(self.epoch, 0))
            except StoreError as error:
                problem = str(error)
        supervisor.hear([Saved(epoch=self.epoch, seconds=self.time.seconds, problem=problem)])
        self.time.lap("save")
        self.time.tell()

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

    def _finish(self, supervisor: Supervisor) -> None:
        self.rounds.consensus()
        if self.best is not None:
            self.fused.load(0, self.best)
        outputs = predictions(self.task, self.fused, 0, self.task.splits.test)
        self.time.lap("evaluate")
        moved, time = int(max(self.rounds.bytes_moved)), self.time
        supervisor.hear([finished_row(self.fused, 0, self.fused.steps, time.seconds, time.times, moved, outputs)])
