"""A worker: it trains its replica on its shard, takes part in rounds, and reports after every epoch.

The same code runs alone, in one of many processes, or under a launcher; only the transport and `report` differ.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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


class Worker:
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
        self.task = task
        self.number = channels.transport.rank
        """Which of the experiment's workers it is. `transport.rank` is its rank among those that take part now."""
        self.channels = channels
        self.stopwatch = stopwatch
        self.emit = emit
        self.report = report
        self.progress = progress or WorkerProgress()
        training = task.experiment.training
        self.loss = choose_loss(training, task.splits.classes, task.splits.loss_unit)
        self.metrics = choose_metrics(training, task.splits.classes)
        self.replica = make_replica(
            network,
            training,
            self.loss,
            part=task.splits.train,
            warn=self._warn,
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
        self.time = Timekeeper(stopwatch, emit, self.number)
        self._may_draw = _may_draw(task, network, self.loss)
        """Whether steps and evaluations may draw random numbers."""
        self.epoch = 0
        self._steps_before_joining = 0
        """Steps of the epoch that were taken before this worker replaced a lost one."""
        self._has_just_joined = False
        """Whether the others have passed this join point already."""
        self.best: dict[str, Any] | None = None
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []

    def train(self) -> None:
        """Train to the end, or until the coordinator says stop."""
        training = self.task.experiment.training
        stopped = False
        with self.progress.allow_more_time():
            with random_turn(self._may_draw):
                self._warn(self.replica.prepare(self._sizes_to_come()))
            if self.number == 0:
                self._warn(self.replica.lr_schedule.problem(self.task.steps_per_epoch))
        if not self._has_just_joined:
            self.channels.repeat(self.channels.transport.barrier)
        self.time.begin()
        while self.epoch < training.epochs and not stopped:
            if not self._has_just_joined:
                self.channels.reach_join_point(self.epoch * self.task.steps_per_epoch, self._state, epoch_begins=True)
            self._has_just_joined = False
            loss, samples, last = self._train_epoch()
            num_correct, num_labeled = self.replica.accuracy.take() if self.replica.accuracy is not None else (0.0, 0)
            stopped = self._evaluate(
                partial(
                    EpochTrained,
                    step=last,
                    loss=loss,
                    samples=samples,
                    num_correct=num_correct,
                    num_labeled=num_labeled,
                )
            )
            for name, size in memory_use(self.replica.flat.vector.device).items():
                self._emit_metric(name, size, last)
            self.epoch = training.epochs if stopped else self.epoch + 1
            self._save()
        self._finish()

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
        self.epoch, self.best = state["epoch"], state["best"]
        self.time.seconds, self.time.times = state["seconds"], dict(state["times"])

    def join(self, state: dict[str, Any]) -> None:
        """Continue from the state of a partner, possibly in the middle of an epoch."""
        self.resume(state)
        self._steps_before_joining, self._has_just_joined = state["done"], True

    def _train_epoch(self) -> tuple[float, int, int]:
        """Train until the epoch ends or the target is reached; return the loss, the samples and the last step."""
        task, training, time = self.task, self.task.experiment.training, self.time
        time.epoch = self.epoch
        with random_turn():
            seed_everything(training.seed, self.epoch, self.number)
        self.replica.network.train()
        part, samples_in_order = task.visits(self.number, self.epoch)
        done, self._steps_before_joining = self._steps_before_joining, 0
        stream = self.replica.feed(part, batches(samples_in_order, training.samples_per_step)[done:])
        loss, samples = 0.0, 0
        first = self.epoch * task.steps_per_epoch
        time.skip()
        # A worker that joined after step `done` first does what the others do after its join point: log, evaluate.
        for step in range(max(1, done), task.steps_per_epoch + 1):
            before = self.channels.waited_and_communicated()
            if step > done:
                with random_turn(self._may_draw):
                    self._train_batch(stream, step)
            evaluates = step in task.evaluation_steps
            logs = task.logs_after(step) or evaluates
            self._count_step_time(*before, wait_for_device=logs)
            if first + step == 1:  # on all workers at the same time, so that none waits for another
                self._check_metrics()
            if logs:
                added = self._log(first + step)
                loss, samples = loss + added[0], samples + added[1]
            if evaluates and self._evaluate(partial(Evaluated, step=first + step)):
                break
        return loss, samples, first + step

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

    def _count_step_time(self, waited: float, communicated: float, *, wait_for_device: bool) -> None:
        """Divide the time of a step into computing, waiting and communicating, given the seconds of both before it."""
        if wait_for_device:
            self.replica.synchronize()
        now_waited, now_communicated = self.channels.waited_and_communicated()
        self.time.lap("compute", waited=now_waited - waited, communicated=now_communicated - communicated)
        if wait_for_device:
            self.time.count_copies(self.task.splits.train.take_copy_seconds())

    def _sizes_to_come(self) -> Counter[int]:
        """Return how many batches of each size this worker has yet to train on."""
        sizes = Counter(sizes[self.number] for sizes in self.task.batch_sizes if sizes[self.number])
        left = self.task.experiment.training.epochs - self.epoch
        return Counter({size: count * left for size, count in sizes.items()})

    def _warn(self, trouble: str) -> None:
        if trouble:
            self.emit(Warned(at=self.stopwatch.now(), text=trouble))

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

    def _check_metrics(self) -> None:
        """Try the user's own metrics after the first step, so that one that fails does so before the epoch ends."""
        with self.progress.allow_more_time():
            unclear = check_outputs(self.task, self.replica.network)
            if self.number == 0:
                self._warn(unclear)
            check_metrics(self.task, self.replica.network)
        self.time.lap("evaluate")

    def _log(self, step: int) -> tuple[float, int]:
        """Log the steps since the last call; return the sum of their losses over samples, and the number of samples."""
        check_parameters(self.task, self.replica, step)
        if not self._losses:
            return 0.0, 0
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
            self._emit_metric("loss", total / samples, step)
            self._emit_metric("lr", self.replica.rate, step)
        if staleness := self.trainer.take_staleness():
            self._emit_metric("staleness", sum(staleness) / len(staleness), step)
        if (distance := self.trainer.take_distance_from_mean()) is not None:
            self._emit_metric("spread", distance, step)
        self.time.emit_sums()
        return total, samples

    def _emit_metric(self, name: str, value: float, step: int) -> None:
        at, epoch, seconds, worker = self.stopwatch.now(), self.epoch, self.time.seconds, self.number
        self.emit(
            Metric(at=at, name=name, value=value, part="train", step=step, epoch=epoch, seconds=seconds, worker=worker)
        )

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
        self.time.lap("evaluate")
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
        part: Part | None = getattr(self.task.splits, name)
        if part is None:
            return None
        transport = self.channels.transport
        with random_turn(self._may_draw):
            return evaluate_share(
                self.replica.network,
                part,
                self.task.share(part, transport.rank, transport.size),
                self.loss,
                self.metrics,
                precision=self.task.experiment.training.precision,
                mark=self.progress.mark,
                keep=keep,
                name=name,
            )

    def _save(self) -> None:
        folder, problem = self.task.checkpoints, ""
        if folder is not None:
            try:
                with self.progress.allow_more_time():
                    tensor_file.save(self._state(), folder / checkpoint.file_name(self.epoch, self.number))
            except StoreError as error:
                problem = str(error)
        saved = Saved(epoch=self.epoch, seconds=self.time.seconds, problem=problem)
        self.channels.repeat(lambda: self.report(saved))
        self.time.lap("save")
        self.time.emit_sums()

    def _state(self, done: int = 0) -> dict[str, Any]:
        """Return the state from which a run resumes, or from which another worker joins after `done` steps."""
        return {
            "replica": self.replica.state(),
            "trainer": self.trainer.state(),
            "epoch": self.epoch,
            "done": done,
            "steps_per_epoch": self.task.steps_per_epoch,
            "best": self.best,
            "seconds": self.time.seconds,
            "times": self.time.times,
        }

    def _finish(self) -> None:
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
        return Finished(
            step=self.replica.steps,
            seconds=self.time.seconds,
            times=self.time.times,
            bytes_moved=int(self.trainer.bytes_moved),
            share=share,
            weights=weights if self.channels.transport.rank == 0 else None,
            memory=peak_memory(),
        )


def _may_draw(task: Task, network: nn.Module, loss: AlignedMeasure) -> bool:
    """Return whether training may draw random numbers: not where all parts are built in, without dropout."""
    model, optimizer = task.experiment.model.name, task.experiment.training.optimizer
    built_in = isinstance(model, str) and model in MODELS and isinstance(optimizer, str) and ":" not in optimizer
    if not built_in or loss.own or isinstance(task.splits.train, DatasetPart):
        return True
    return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in network.modules())
