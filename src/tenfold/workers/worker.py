"""The epoch loop, and a worker: it trains its replica on its shard, averages in rounds, and reports after every epoch.

`TrainingLoop` is the loop of all engines. `Worker` trains one replica by it: alone, in one of many processes, or under
a launcher; only the transport and `report` differ. `engines/one_device.py` trains replicas that step together.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.catalog import MODELS
from tenfold.data import DatasetPart, Part, batches
from tenfold.errors import ModelError, StoreError, TenfoldError
from tenfold.machine.liveness import WorkerProgress, memory_use, peak_memory
from tenfold.mixing.builders import lr_scale, warmup_epochs
from tenfold.runs import Emit, Metric, Stopwatch, Warned, checkpoint, stored_predictions, tensor_file
from tenfold.training import choose_loss, choose_metrics
from tenfold.training.evaluation import EvaluatedShare, evaluate_share, make_training_accuracy
from tenfold.training.measures import AlignedMeasure
from tenfold.training.randomness import random_turn, seed_everything
from tenfold.training.replica import make_replica
from tenfold.transport.segment import MembersChanged
from tenfold.workers.channels import Channels
from tenfold.workers.model_errors import (
    check_metrics,
    check_outputs,
    check_parameters,
    explain_failure,
    make_divergence_error,
)
from tenfold.workers.task import Decision, EpochTrained, Evaluated, Finished, Message, Saved, Task
from tenfold.workers.timekeeper import Timekeeper
from tenfold.workers.trainers import can_capture, make_trainer

Report = Callable[[Message], Decision]


class TrainingLoop(ABC):
    """Trains epoch by epoch; a subclass says what the replicas are, and how they step, average and are evaluated."""

    epochs: int
    steps_per_epoch: int
    device: torch.device

    def __init__(
        self, stopwatch: Stopwatch, emit: Emit, number: int = 0, progress: WorkerProgress | None = None
    ) -> None:
        """Keep the time of worker `number`, and publish the `progress` for the process that watches it, if one does."""
        self.stopwatch = stopwatch
        self.emit = emit
        self.number = number
        """Which of the experiment's workers it is. `transport.rank` is its rank among those that take part now."""
        self.progress = progress or WorkerProgress()
        self.time = Timekeeper(stopwatch, emit, number)
        self.epoch = 0
        self.last_step = 0
        """The step that was taken last, counted over the run."""

    def train_epochs(self) -> None:
        """Train to the last epoch, or until an evaluation says stop."""
        self.prepare()
        self.time.begin()
        while self.epoch < self.epochs:
            self._train_epoch()
            stopped = self.end_epoch()
            for name, size in memory_use(self.device).items():
                self.emit_metric(name, size, self.last_step)
            self.time.lap("evaluate")
            self.epoch = self.epochs if stopped else self.epoch + 1
            self.save()
            self.time.emit_sums()
        self.finish()

    def _train_epoch(self) -> None:
        """Train until the epoch ends, or until an evaluation in the middle of it says stop."""
        self.time.epoch = self.epoch
        for step in self.steps():
            self.last_step = self.first_step + step
            evaluates = self.evaluates_after(step)
            logs = evaluates or self.logs_after(step)
            self.end_step(step, logs=logs)
            if self.last_step == 1 and self.check_metrics():
                break
            if logs:
                self.log(self.last_step)
                self.time.emit_sums()
            if evaluates:
                stopped = self.evaluate()
                self.time.lap("evaluate")
                if stopped:
                    break

    @property
    def first_step(self) -> int:
        """The number of steps before this epoch."""
        return self.epoch * self.steps_per_epoch

    @abstractmethod
    def prepare(self) -> None:
        """Do what comes before the first step."""

    @abstractmethod
    def steps(self) -> Iterator[int]:
        """Begin an epoch, take its steps with their rounds, and yield the number of each, from 1, when it is done."""

    @abstractmethod
    def end_step(self, step: int, *, logs: bool) -> None:
        """Count the time of a step; `logs` says whether its losses are needed next."""

    @abstractmethod
    def check_metrics(self) -> bool:
        """Try the user's own metrics after the first step, and return whether to stop."""

    @abstractmethod
    def logs_after(self, step: int) -> bool:
        """Return whether losses are logged after this step of the epoch."""

    @abstractmethod
    def log(self, step: int) -> None:
        """Log the losses since the last call, and refuse those that are not finite; `step` is counted over the run."""

    @abstractmethod
    def evaluates_after(self, step: int) -> bool:
        """Return whether the mean of the replicas is evaluated after this step, in the middle of the epoch."""

    @abstractmethod
    def evaluate(self) -> bool:
        """Evaluate the mean of the replicas in the middle of an epoch, and return whether to stop."""

    @abstractmethod
    def end_epoch(self) -> bool:
        """Evaluate the mean of the replicas after an epoch, and return whether to stop."""

    @abstractmethod
    def save(self) -> None:
        """Save a checkpoint, where there are checkpoints."""

    @abstractmethod
    def finish(self) -> None:
        """Evaluate the trained model, and send it to the coordinator."""

    def save_state(self, folder: Path | None, state: Callable[[], dict[str, Any]]) -> Saved:
        """Save a checkpoint in this folder, if there is one, and return the message to the coordinator about it."""
        problem = ""
        if folder is not None:
            try:
                with self.progress.allow_more_time():
                    tensor_file.save(state(), folder / checkpoint.file_name(self.epoch, self.number))
            except StoreError as error:
                problem = str(error)
        return Saved(epoch=self.epoch, seconds=self.time.seconds, problem=problem)

    def progress_state(self) -> dict[str, Any]:
        """Return what a checkpoint stores of the loop."""
        return {"epoch": self.epoch, "seconds": self.time.seconds, "times": self.time.times}

    def resume_progress(self, state: dict[str, Any]) -> None:
        """Continue from what `progress_state` returned."""
        self.epoch, self.time.seconds, self.time.times = state["epoch"], state["seconds"], dict(state["times"])

    def warn(self, trouble: str, emit: Emit | None = None) -> None:
        """Record a warning, unless it is empty."""
        if trouble:
            (emit or self.emit)(Warned(at=self.stopwatch.now(), text=trouble))

    def emit_metric(
        self, name: str, value: float, step: int, *, emit: Emit | None = None, worker: int | None = None
    ) -> None:
        """Record a measurement of training: of this worker, unless another is named."""
        (emit or self.emit)(
            Metric(
                at=self.stopwatch.now(),
                name=name,
                value=value,
                part="train",
                step=step,
                epoch=self.epoch,
                seconds=self.time.seconds,
                worker=self.number if worker is None else worker,
            )
        )

    def evaluate_part(
        self,
        task: Task,
        network: nn.Module,
        name: str,
        keep: int,
        *,
        loss: AlignedMeasure,
        metrics: dict[str, AlignedMeasure],
        rank: int = 0,
        size: int = 1,
        may_draw: bool = True,
    ) -> EvaluatedShare | None:
        """Return what a part says of a network, or this rank's share of it; None where the task has no such part."""
        part: Part | None = getattr(task.splits, name)
        if part is None:
            return None
        with random_turn(may_draw):
            return evaluate_share(
                network,
                part,
                task.share(part, rank, size),
                loss,
                metrics,
                precision=task.experiment.training.precision,
                mark=self.progress.mark,
                keep=keep,
                name=name,
            )

    def make_final_message(
        self, step: int, share: EvaluatedShare | None, weights: dict[str, Tensor] | None, bytes_moved: float
    ) -> Finished:
        """Return the message to the coordinator that ends the training."""
        return Finished(
            step=step,
            seconds=self.time.seconds,
            times=dict(self.time.times),
            bytes_moved=int(bytes_moved),
            share=share,
            weights=weights,
            memory=peak_memory(),
        )


class Worker(TrainingLoop):
    """One worker with its replica."""

    def __init__(
        self,
        task: Task,
        network: nn.Module,
        channels: Channels,
        stopwatch: Stopwatch,
        emit: Emit,
        report: Report,
        progress: WorkerProgress | None = None,
    ) -> None:
        """Make the replica; `progress` is published for the process that watches this worker, if one does."""
        super().__init__(stopwatch, emit, channels.transport.rank, progress)
        self.task = task
        self.channels = channels
        self.report = report
        training = task.experiment.training
        self.epochs, self.steps_per_epoch = training.epochs, task.steps_per_epoch
        self.loss = choose_loss(training, task.splits.classes, task.splits.loss_unit)
        self.metrics = choose_metrics(training, task.splits.classes)
        self.replica = make_replica(
            network,
            training,
            self.loss,
            part=task.splits.train,
            warn=self.warn,
            capturing=can_capture(task.parallel),
            steps_per_epoch=task.steps_per_epoch,
            lr_scale=lr_scale(task.experiment),
            labels_per_sample=task.splits.labels_per_sample,
            warmup=warmup_epochs(task.experiment),
            vector=channels.transport.buffer,
        )
        self.replica.accuracy = make_training_accuracy(training, task.splits.classes)
        samples = [float(len(shard)) for shard in task.shards]
        self.trainer = make_trainer(task.parallel, self.replica, channels, samples)
        self.device = self.replica.flat.vector.device
        self._may_draw = _may_draw(task, network, self.loss)
        """Whether steps and evaluations may draw random numbers."""
        self._steps_before_joining = 0
        """Steps of the epoch that were taken before this worker replaced a lost one."""
        self._has_just_joined = False
        """Whether the others have passed this join point already."""
        self.best: dict[str, Any] | None = None
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []
        self._epoch_loss, self._epoch_samples = 0.0, 0
        """Of this epoch: the sum of the losses over the samples, and the samples."""
        self._waited_and_communicated = (0.0, 0.0)
        """Seconds before the step that is being taken."""

    def train(self) -> None:
        """Train to the end, or until the coordinator says stop."""
        self.train_epochs()

    def prepare(self) -> None:
        """Prepare the steps to come, and wait for the other workers."""
        with self.progress.allow_more_time():
            with random_turn(self._may_draw):
                self.warn(self.replica.prepare(self._sizes_to_come()))
            if self.number == 0:
                self.warn(self.replica.lr_schedule.problem(self.task.steps_per_epoch))
        if not self._has_just_joined:
            self.channels.repeat(self.channels.transport.barrier)

    def end_epoch(self) -> bool:
        """Evaluate the mean of all replicas, report the epoch, and return whether to stop."""
        num_correct, num_labeled = self.replica.accuracy.take() if self.replica.accuracy is not None else (0.0, 0)
        loss, samples = self._epoch_loss, self._epoch_samples
        return self._evaluate(
            partial(
                EpochTrained,
                step=self.last_step,
                loss=loss,
                samples=samples,
                num_correct=num_correct,
                num_labeled=num_labeled,
            )
        )

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        try:
            self.replica.load(state["replica"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ModelError(f"the checkpoint does not fit model {self.task.experiment.model.name}: {error}") from None
        self.trainer.load(state["trainer"])
        before = state.get("steps_per_epoch", self.task.steps_per_epoch)
        # the same progress with other shards
        self.replica.steps = self.replica.steps * self.task.steps_per_epoch // before
        self.best = state["best"]
        self.resume_progress(state)

    def join(self, state: dict[str, Any]) -> None:
        """Continue from the state of a partner, possibly in the middle of an epoch."""
        self.resume(state)
        self._steps_before_joining, self._has_just_joined = state["done"], True

    def steps(self) -> Iterator[int]:
        """Take the steps of this epoch; a worker that joins in the middle of it takes the rest of them."""
        task, training = self.task, self.task.experiment.training
        if not self._has_just_joined:
            self.channels.reach_join_point(self.first_step, self._state, epoch_begins=True)
        self._has_just_joined = False
        with random_turn():
            seed_everything(training.seed, self.epoch, self.number)
        self.replica.network.train()
        part, samples_in_order = task.visits(self.number, self.epoch)
        done, self._steps_before_joining = self._steps_before_joining, 0
        stream = self.replica.feed(part, batches(samples_in_order, training.samples_per_step)[done:])
        self._epoch_loss, self._epoch_samples = 0.0, 0
        self.time.skip()
        # A worker that joined after step `done` first does what the others do after its join point: log, evaluate.
        for step in range(max(1, done), task.steps_per_epoch + 1):
            self._waited_and_communicated = self.channels.waited_and_communicated()
            if step > done:
                with random_turn(self._may_draw):
                    self._train_batch(stream, step)
            yield step

    def _train_batch(self, stream: Iterator[tuple[Any, Any]], step: int) -> None:
        """Take a step on the next batch, if this worker has one left, and average with the others when that is due."""
        x, y = next(stream, (None, None))
        self.time.lap("data")
        step_of_run = self.epoch * self.task.steps_per_epoch + step
        self.channels.step = step_of_run
        self._train_step(x, y, self.task.batch_sizes[step - 1])
        self.trainer.average_weights_if_due(step_of_run)
        self.replica.update_ema()
        self.progress.mark()
        self.channels.reach_join_point(step_of_run, lambda: self._state(done=step))

    def end_step(self, step: int, *, logs: bool) -> None:  # noqa: ARG002
        """Divide the time of a step into computing, waiting and communicating; wait for the device before a log."""
        if logs:
            self.replica.synchronize()
        waited, communicated = self._waited_and_communicated
        now_waited, now_communicated = self.channels.waited_and_communicated()
        self.time.lap("compute", waited=now_waited - waited, communicated=now_communicated - communicated)
        if logs:
            self.time.count_copies(self.task.splits.train.take_copy_seconds())

    def _sizes_to_come(self) -> Counter[int]:
        """Return how many batches of each size this worker has yet to train on."""
        sizes = Counter(sizes[self.number] for sizes in self.task.batch_sizes if sizes[self.number])
        left = self.task.experiment.training.epochs - self.epoch
        return Counter({size: count * left for size, count in sizes.items()})

    def _train_step(self, x: Any, y: Any, sizes: Sequence[int]) -> None:
        """Let the trainer take a step, and keep the loss; an error of the user's code names the batch."""
        try:
            loss = self.trainer.train_step(x, y, sizes)
            if loss is not None:
                self._losses.append(loss)
                self._sizes.append(sizes[self.number])
        except TenfoldError:
            raise
        except Exception as error:
            if (explained := explain_failure(self.task, self.replica, x, y, error)) is None:
                raise
            raise explained from error

    def check_metrics(self) -> bool:
        """Try the user's own metrics, on all workers at the same time, so that none waits for another."""
        with self.progress.allow_more_time():
            unclear = check_outputs(self.task, self.replica.network)
            if self.number == 0:
                self.warn(unclear)
            check_metrics(self.task, self.replica.network)
        self.time.lap("evaluate")
        return False

    def logs_after(self, step: int) -> bool:
        """Return what the task's `log_every` says."""
        return self.task.logs_after(step)

    def log(self, step: int) -> None:
        """Log the steps since the last call; raise an error if a weight or a loss is not finite."""
        check_parameters(self.task, self.replica, step)
        if not self._losses:
            return
        losses = torch.stack(self._losses).tolist()
        weights = [1] * len(losses) if self.loss.is_sum else self._sizes
        total = sum(loss * weight for loss, weight in zip(losses, weights, strict=True))
        samples = sum(self._sizes)
        self._losses, self._sizes = [], []
        odd = next((loss for loss in losses if not math.isfinite(loss)), None)
        if odd is not None:
            first = step == len(losses) and not math.isfinite(losses[0])
            raise make_divergence_error(self.task, odd, step, self.number, from_the_start=first)
        if self.channels.transport.rank == 0:
            self.emit_metric("loss", total / samples, step)
            self.emit_metric("lr", self.replica.rate, step)
        if staleness := self.trainer.take_staleness():
            self.emit_metric("staleness", sum(staleness) / len(staleness), step)
        if (distance := self.trainer.take_distance_from_mean()) is not None:
            self.emit_metric("spread", distance, step)
        self._epoch_loss, self._epoch_samples = self._epoch_loss + total, self._epoch_samples + samples

    def evaluates_after(self, step: int) -> bool:
        """Return what the task's `evaluate_every` says."""
        return step in self.task.evaluation_steps

    def evaluate(self) -> bool:
        """Evaluate the mean of all replicas in the middle of an epoch, and return whether to stop."""
        return self._evaluate(partial(Evaluated, step=self.last_step))

    def _evaluate(self, message: Callable[..., Message]) -> bool:
        """Evaluate the mean of all replicas, report what this worker's share says of it, and return whether to stop.

        `message` makes the report, given the epoch, the seconds and the share.
        """

        def evaluate() -> Decision:
            with self._evaluated_mean() as share:
                decision = self.report(message(epoch=self.epoch, seconds=self.time.seconds, share=share))
                if decision.best and self._keeps_best:
                    self.best = {name: tensor.clone() for name, tensor in self.replica.network.state_dict().items()}
            return decision

        decision = self.channels.repeat(evaluate)
        if decision.loss is not None:
            self.replica.lr_schedule.observe(decision.loss, decision.metric)
        return decision.stop

    @property
    def _keeps_best(self) -> bool:
        """Whether this worker keeps the best weights so far: the first one does, and all where it may be lost."""
        experiment = self.task.experiment
        keeps = self.number == 0 or experiment.machine.on_failure == "continue"
        return keeps and experiment.training.patience is not None

    @contextmanager
    def _evaluated_mean(self) -> Iterator[EvaluatedShare | None]:
        """Give the replica the mean of all for this block, and yield what this worker's share says of that model."""
        self.channels.begin_evaluation()
        self.channels.transport.barrier()  # until then a partner may still change this replica
        with self._restoring() as own:
            self.replica.use_ema()
            self.trainer.use_mean_of_replicas()
            yield self._evaluate_share(self.task.evaluation_part_name, self.task.kept_while_training)
        self.replica.flat.vector.copy_(own)

    @contextmanager
    def _restoring(self) -> Iterator[Tensor]:
        """Yield a copy of the weights; restore all if the members change meanwhile, so that this can be repeated."""
        flat = self.replica.flat
        own, reference_means = flat.vector.clone(), [reference.clone() for reference in flat.batch_norm.reference_means]
        try:
            yield own
        except MembersChanged:
            flat.vector.copy_(own)
            for reference, before in zip(flat.batch_norm.reference_means, reference_means, strict=True):
                reference.copy_(before)
            raise

    def _evaluate_share(self, name: str, keep: int) -> EvaluatedShare | None:
        transport = self.channels.transport
        return self.evaluate_part(
            self.task,
            self.replica.network,
            name,
            keep,
            loss=self.loss,
            metrics=self.metrics,
            rank=transport.rank,
            size=transport.size,
            may_draw=self._may_draw,
        )

    def save(self) -> None:
        """Save the state of this worker's replica, and report it."""
        saved = self.save_state(self.task.checkpoints, self._state)
        self.channels.repeat(lambda: self.report(saved))
        self.time.lap("save")

    def _state(self, done: int = 0) -> dict[str, Any]:
        """Return the state from which a run resumes, or from which another worker joins after `done` steps."""
        return {
            "replica": self.replica.state(),
            "trainer": self.trainer.state(),
            "done": done,
            "steps_per_epoch": self.task.steps_per_epoch,
            "best": self.best,
            **self.progress_state(),
        }

    def finish(self) -> None:
        """Report the trained model; again if the members change meanwhile."""

        def finish() -> None:
            self.channels.begin_evaluation()
            with self._restoring():
                self.report(self._final_message())

        self.channels.repeat(finish)

    def _final_message(self) -> Finished:
        """Replace the weights by the mean of all replicas, or the best so far, and return the final report."""
        self.time.skip()
        waited, _ = self.channels.waited_and_communicated()
        self.replica.use_ema()
        self.trainer.use_mean_of_replicas()
        if not self.task.ends_equal(self.replica.steps):  # it averages the replicas, as any other round does
            self.time.lap("communicate", waited=self.channels.waited_and_communicated()[0] - waited)
        if self.best is not None:
            self.replica.network.load_state_dict(self.best)
        if self.task.experiment.training.patience is not None:
            self.channels.transport.broadcast()
        share = self._evaluate_share("test", stored_predictions.LIMIT)
        self.time.lap("evaluate")
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.replica.network.state_dict().items()}
        return self.make_final_message(
            self.replica.steps,
            share,
            weights if self.channels.transport.rank == 0 else None,
            self.trainer.bytes_moved,
        )


def _may_draw(task: Task, network: nn.Module, loss: AlignedMeasure) -> bool:
    """Return whether training may draw random numbers: not where all parts are built in, without dropout."""
    model, optimizer = task.experiment.model.name, task.experiment.training.optimizer
    built_in = isinstance(model, str) and model in MODELS and isinstance(optimizer, str) and ":" not in optimizer
    if not built_in or loss.own or isinstance(task.splits.train, DatasetPart):
        return True
    return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in network.modules())
