"""A worker trains its replica on its shard, averages in rounds, and reports after every epoch.

All engines use this training loop: a single worker, many processes, a launcher's ranks, and one device, where one
worker trains all replicas together. Only the replica, the transport and `ask` differ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import DatasetPart, Part
from tenfold.errors import ModelError, StoreError, TenfoldError
from tenfold.machine.liveness import WorkerProgress, memory_use, peak_memory
from tenfold.registry import MODELS
from tenfold.runs import checkpoint, stored_predictions
from tenfold.runs.events import Emit, Metric, Note, Span, SpanKind, Stopwatch, Warned
from tenfold.training.evaluation import EvaluatedShare, evaluate_share, make_training_accuracy, pass_share
from tenfold.training.randomness import holding_random_numbers
from tenfold.training.replica import Replica, make_replica
from tenfold.training.stacked_replicas import ReplicaRows
from tenfold.training.stages import Stage
from tenfold.transport.shared_memory import MembersChanged
from tenfold.workers.channels import Channels
from tenfold.workers.coordinator import Decision, EpochTrained, Evaluated, Finished, Message, Saved
from tenfold.workers.divided import has_outputs, make_part, take_part
from tenfold.workers.model_errors import (
    check_metrics,
    check_outputs,
    check_parameters,
    check_shapes,
    explain_failure,
    make_divergence_error,
)
from tenfold.workers.task import Task, make_network
from tenfold.workers.trainers import can_capture, make_trainer

SINGLE_SPANS = 600
TRAINING: tuple[SpanKind, ...] = ("data", "copy", "compute", "wait", "communicate")


class Timekeeper:
    """Divides a worker's time into kinds of spans.

    The first spans are emitted individually, for the timeline; later ones are summed until the next `emit_sums`.
    """

    def __init__(self, stopwatch: Stopwatch, emit: Emit, worker: int, single: int = SINGLE_SPANS) -> None:
        self.stopwatch = stopwatch
        self.emit = emit
        self.worker = worker
        self.seconds = 0.0
        """Training time so far."""
        self.epoch = 0
        self.times: dict[str, float] = {}
        self._single = single
        self._since = perf_counter()
        self._window = self._since
        self._sums: dict[SpanKind, tuple[float, int]] = {}
        self._computed = 0.0
        """Seconds of computing when copies were last counted."""

    def begin(self) -> None:
        """Count the time before the first step as startup; a resumed run had its startup before."""
        if not self.times:
            self._since = self.stopwatch.origin
            self.lap("start")

    def skip(self) -> None:
        """Start a new lap without counting the time since the last one."""
        self._since = perf_counter()

    def lap(self, kind: SpanKind, *, communicated: float = 0.0, waited: float = 0.0) -> None:
        """Count the time since the last lap as this kind, except for communicating and waiting."""
        now = perf_counter()
        own = now - self._since - communicated - waited
        self._add(kind, self._since, own)
        if waited:
            self._add("wait", self._since + own, waited)
        if communicated:
            self._add("communicate", now - communicated, communicated)
        self._since = now

    def count_copies(self, seconds: float) -> None:
        """Count the seconds that a GPU spent on copies since the last call as copying, not computing.

        The worker waits for both together. Copies that overlap with other work add no time, so it may count less.
        """
        if not seconds:
            return
        moved = min(seconds, self.times.get("compute", 0.0) - self._computed)
        self.times["compute"] = self._computed = self.times.get("compute", 0.0) - moved
        self.times["copy"] = self.times.get("copy", 0.0) + moved
        if "compute" in self._sums:  # the first spans were emitted individually
            computed, count = self._sums["compute"]
            of_sums = min(moved, computed)
            self._sums |= {"compute": (computed - of_sums, count), "copy": (of_sums, count)}

    def emit_sums(self) -> None:
        for kind, (seconds, count) in self._sums.items():
            at = self._window - self.stopwatch.origin
            self._emit(at, kind, seconds, count)
        self._sums.clear()
        self._window = self._since

    def _add(self, kind: SpanKind, start: float, seconds: float) -> None:
        self.times[kind] = self.times.get(kind, 0.0) + seconds
        if kind in TRAINING:
            self.seconds += seconds
        if self._single > 0:
            self._single -= 1
            self._emit(start - self.stopwatch.origin, kind, seconds)
            self._window = start + seconds
        else:
            total, count = self._sums.get(kind, (0.0, 0))
            self._sums[kind] = (total + seconds, count + 1)

    def _emit(self, at: float, kind: SpanKind, seconds: float, count: int = 1) -> None:
        self.emit(Span(at=at, kind=kind, seconds=seconds, count=count, epoch=self.epoch, worker=self.worker))


Ask = Callable[[Message], Decision]
"""Sends a message to the coordinator, and returns its decision."""


MOST_SPREADS = 8
"""The spread is recorded of the first replicas only: writing a thousand of them would take longer than the steps."""


class Worker:
    """One worker with its replica, or with all replicas of a task if they step together on one device."""

    def __init__(
        self,
        task: Task,
        channels: Channels,
        stopwatch: Stopwatch,
        emit: Emit,
        ask: Ask,
        progress: WorkerProgress | None = None,
        *,
        replica: ReplicaRows | None = None,
        time: Timekeeper | None = None,
    ) -> None:
        """Create a replica, unless replicas that step together are given.

        `progress` is published for the process that watches this worker, if there is one. Workers whose replicas step
        together share a `time`. Raises ModelError if the network does not have the same weights in every process.
        """
        training = task.experiment.training
        self.task = task
        self.channels = channels
        self.stopwatch = stopwatch
        self.emit = emit
        self.ask = ask
        self.progress = progress or WorkerProgress()
        group, self.replica_number = channels.group, channels.transport.rank
        """The index of its replica in the experiment; of the first one, if it trains all. It stays the same when
        another worker is lost; `transport.rank` is its rank among the current members."""
        self.number = self.replica_number if group is None else self.replica_number * group.size + group.rank
        """Which of the experiment's workers it is: several workers hold one replica if the model is divided."""
        self.time = time or Timekeeper(stopwatch, emit, self.number)
        self._shares_time = time is not None
        self.replica = replica or self._make_replica()
        self.replicas = range(self.replica_number, self.replica_number + self.replica.k)
        """The numbers of the replicas that it trains: its own, or all of them."""
        self.replica.accuracy = make_training_accuracy(training, task.metrics)
        self.device = self.replica.vector.device
        self.epoch = 0
        self.last_step = 0
        """The step that was taken last, counted over the run."""
        self.best: dict[str, Any] | None = None
        self._may_draw = _may_draw(task, self.replica.network)
        """Whether steps and evaluations may draw random numbers."""
        is_plain = task.workers == 1 and task.experiment.training.ema is None
        self._is_alone_in_stack = isinstance(self.replica, ReplicaRows) and is_plain
        """Whether the other rows of the stack belong to other tasks, with which it never averages."""
        self.trainer = make_trainer(task, self.replica, channels, self.progress.mark, may_draw=self._may_draw)
        self._steps_before_joining = 0
        """Steps of the epoch that were taken before this worker replaced a lost one."""
        self._has_just_joined = False
        """Whether the others have passed this join point already."""
        self._losses: list[Tensor] = []
        self._sizes: list[Sequence[int]] = []
        """Of the steps since the last log: the losses, and the samples of each replica."""
        self._epoch_loss, self._epoch_samples = 0.0, 0
        """Of this epoch: the sum of the losses over the samples, and the samples."""
        self._waited_and_communicated = (0.0, 0.0)
        """Seconds before the step that is being taken."""

    def _make_replica(self) -> Replica:
        task, group, network = self.task, self.channels.group, make_network(self.task)
        check_shapes(network, task.metadata)
        make: Callable[..., Replica] = partial(
            make_replica, part=task.splits.train, warn=self.warn, capturing=can_capture(task.mixing)
        )
        if task.division is not None and group is not None:
            network = take_part(network, task.division, group, task.splits)
            make = partial(make_part, parallel=task.parallel, group=group)
        return make(
            network,
            task.experiment.training,
            self.task.loss,
            steps_per_epoch=task.steps_per_epoch,
            lr_scale=task.resolved.lr_scale,
            labels_per_sample=task.splits.labels_per_sample,
            warmup=task.resolved.warmup_epochs,
            vector=self.channels.transport.buffer,
        )

    def train(self) -> None:
        """Train to the end, or until the coordinator decides to stop."""
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[tuple[int, int]]:
        """Train to the end, yielding between steps, so that workers whose replicas step together take turns.

        Yields the epoch and the number of the next step.
        """
        self._prepare()
        self.time.begin()
        epochs = self.task.experiment.training.epochs
        while self.epoch < epochs:
            yield from self._train_epoch()
            stopped = self._end_epoch()
            for name, size in memory_use(self.device).items():
                self.emit_metric(name, size, self.last_step)
            self.time.lap("evaluate")
            self.epoch = epochs if stopped else self.epoch + 1
            self._save()
            self._emit_times()
        self._finish()

    def _prepare(self) -> None:
        """Prepare the steps, and wait for the other workers."""
        with self.progress.allow_more_time():
            with holding_random_numbers(self._may_draw):
                problem = self.replica.prepare(self._sizes_to_come())
            if self.replica.description:
                self.emit(Note(at=self.stopwatch.now(), text=self.replica.description))
            self.warn(problem)
            if self.number == 0:
                self.warn(self.replica.lr_schedule.problem(self.task.steps_per_epoch))
        if not self._has_just_joined:
            self.channels.repeat(self.channels.transport.barrier)

    def _train_epoch(self) -> Iterator[tuple[int, int]]:
        """Train until the epoch ends, or until an evaluation in the middle of it decides to stop."""
        stream, done = self._begin_epoch()
        self._waited_and_communicated = self.channels.waited_and_communicated()
        if done and self._log_and_evaluate(done):  # as the others after the join point
            return
        for step in self._steps_after(done):
            yield self.epoch, step
            self._waited_and_communicated = self.channels.waited_and_communicated()
            with holding_random_numbers(self._may_draw):
                self._train_batch(stream, step)
            if self._log_and_evaluate(step):
                return

    def _steps_after(self, done: int) -> Iterable[int]:
        """Return the steps of this epoch after the first `done`; if steps come together, only the logged ones."""
        if not self._is_alone_in_stack:
            return range(done + 1, self.task.steps_per_epoch + 1)
        logged = self.task.logged_steps
        return logged if self.epoch else sorted({1, *logged})  # after the first step of all, metrics are checked

    def _log_and_evaluate(self, step: int) -> bool:
        """Log and evaluate if due after this step of the epoch, and return whether to stop."""
        self.last_step = self._step_of_run(step)
        evaluates = step in self.task.evaluation_steps
        logs = evaluates or self.task.logs_after(step)
        self._end_step(waits=logs or self.last_step == 1)
        if self.last_step == 1:
            self._check_metrics()
        if logs:
            self._log(self.last_step)
            self._emit_times()
        if not evaluates:
            return False
        stopped = self._evaluate(partial(Evaluated, step=self.last_step))
        self.time.lap("evaluate")
        return stopped

    def _step_of_run(self, step: int) -> int:
        return self.epoch * self.task.steps_per_epoch + step

    def _begin_epoch(self) -> tuple[Iterator[tuple[Any, Any]], int]:
        """Return the batches of an epoch, and the number of its steps before this worker joined."""
        task, training = self.task, self.task.experiment.training
        self.time.epoch = self.epoch
        if not self._has_just_joined:
            self.channels.reach_join_point(self.epoch * task.steps_per_epoch, self._state, epoch_begins=True)
        self._has_just_joined = False
        with holding_random_numbers():
            self.replica.begin_epoch([(training.seed, self.epoch, replica) for replica in self.replicas])
        done, self._steps_before_joining = self._steps_before_joining, 0
        stream = self.trainer.batches(task, self.replicas, self.epoch, done)
        self._epoch_loss, self._epoch_samples = 0.0, 0
        self.time.skip()
        return stream, done

    def _train_batch(self, stream: Iterator[tuple[Any, Any]], step: int) -> None:
        """Take a step on the next batch, if there is one left, and average with the others if due."""
        x, y = (step, None) if self._is_alone_in_stack else next(stream, (None, None))
        if self.replica.timed_by_step:
            self.time.lap("data")
        step_of_run = self._step_of_run(step)
        self.channels.step = step_of_run
        self._train_step(x, y, step)
        self.trainer.average_weights_if_due(step_of_run)
        self.replica.update_ema()
        self.progress.mark()
        self.channels.reach_join_point(step_of_run, lambda: self._state(done=step))

    def _train_step(self, x: Any, y: Any, step: int) -> None:
        """Let the trainer take a step, and keep the loss; errors in the user's code name the batch."""
        sizes, replicas = self.task.batch_sizes, self.replicas
        try:
            loss = self.trainer.train_step(x, y, sizes[step - 1])
            if loss is not None and self.speaks_for_replica:
                losses = loss.reshape(-1, len(replicas))  # several rows if earlier steps were included
                self._losses.append(losses)
                self._sizes += [of[replicas.start : replicas.stop] for of in sizes[step - len(losses) : step]]
        except TenfoldError:
            raise
        except Exception as error:
            if (explained := explain_failure(self.task, self.replica, *self.trainer.failed_batch(x, y), error)) is None:
                raise
            raise explained from error

    def _end_step(self, *, waits: bool) -> None:
        """Divide the time of a step into computing, waiting and communicating; `waits`: wait for the device first."""
        if waits:
            self.replica.synchronize()
        elif not self.replica.timed_by_step:
            return
        waited, communicated = self._waited_and_communicated
        now_waited, now_communicated = self.channels.waited_and_communicated()
        self.time.lap("compute", waited=now_waited - waited, communicated=now_communicated - communicated)
        if waits:
            self.time.count_copies(self.task.splits.train.take_copy_seconds())

    def _sizes_to_come(self) -> Counter[int]:
        sizes = Counter(sizes[self.replica_number] for sizes in self.task.batch_sizes if sizes[self.replica_number])
        left = self.task.experiment.training.epochs - self.epoch
        return Counter({size: count * left for size, count in sizes.items()})

    def _check_metrics(self) -> None:
        """Try the user's own metrics, on all workers at the same time, so none waits for another."""
        if isinstance(self.replica.network, Stage):
            return
        with self.progress.allow_more_time():
            unclear = check_outputs(self.task, self.replica.network)
            if self.number == 0:
                self.warn(unclear)
            check_metrics(self.task, self.replica.network)
        self.time.lap("evaluate")

    def _log(self, step: int) -> None:
        """Log the steps since the last call; raise an error if a weight or a loss is not finite."""
        check_parameters(self.task, self.replica, step)
        if not self._losses:
            return
        losses = torch.cat(self._losses).cpu().double()
        sizes = torch.tensor(self._sizes, dtype=torch.float64)
        self._losses, self._sizes = [], []
        not_finite = (~losses.isfinite() & (sizes > 0)).nonzero().tolist()
        if not_finite:
            place, row = not_finite[0]
            first = step == len(losses) and not losses[0, row].isfinite()
            loss, worker = float(losses[place, row]), self.replicas[row]
            raise make_divergence_error(self.task, loss, step, worker, from_the_start=bool(first))
        factors = sizes.clamp(max=1) if self.task.loss.is_sum else sizes
        totals, samples = (losses * factors).where(sizes > 0, 0.0).sum(0).tolist(), sizes.sum(0).tolist()
        if self.channels.transport.rank == 0:
            if samples[0]:
                self.emit_metric("loss", totals[0] / samples[0], step, worker=self.replica_number)
            self.emit_metric("lr", self.replica.lr, step, worker=self.replica_number)
        if staleness := self.trainer.take_staleness():
            self.emit_metric("staleness", sum(staleness) / len(staleness), step)
        for row, distance in enumerate(self.trainer.take_distances_from_mean()[:MOST_SPREADS]):
            self.emit_metric("spread", distance, step, worker=self.number + row)
        self._epoch_loss, self._epoch_samples = self._epoch_loss + sum(totals), self._epoch_samples + int(sum(samples))

    def _end_epoch(self) -> bool:
        """Evaluate the mean of all replicas, report the epoch, and return whether to stop."""
        num_correct, num_labeled = self.replica.accuracy.take() if self.replica.accuracy is not None else (0.0, 0)
        return self._evaluate(
            partial(
                EpochTrained,
                step=self.last_step,
                loss=self._epoch_loss,
                samples=self._epoch_samples,
                num_correct=num_correct,
                num_labeled=num_labeled,
            )
        )

    def _evaluate(self, make_message: Callable[..., Message]) -> bool:
        """Evaluate the mean of all replicas, send the result on this worker's share, and return whether to stop.

        `make_message` is called with the epoch, the seconds and the share.
        """

        def evaluate() -> Decision:
            with self._with_mean_weights() as share:
                decision = self.ask(make_message(epoch=self.epoch, seconds=self.time.seconds, share=share))
                if decision.best and self._keeps_best:
                    self.best = {name: tensor.clone() for name, tensor in self.replica.network.state_dict().items()}
            return decision

        decision = self.channels.repeat(evaluate)
        if decision.loss is not None:
            self.replica.lr_schedule.observe(decision.loss, decision.metric)
        return decision.stop

    @property
    def speaks_for_replica(self) -> bool:
        """Whether this worker reports on its replica; if several share it, one of them does."""
        return self.channels.group is None or not isinstance(self.replica, Replica) or has_outputs(self.replica)

    @property
    def _keeps_best(self) -> bool:
        """Whether this worker keeps the best weights so far: the first one, or all if workers may be lost."""
        experiment = self.task.experiment
        keeps = self.replica_number == 0 or experiment.machine.on_failure == "continue"
        return keeps and experiment.training.patience is not None

    @contextmanager
    def _with_mean_weights(self) -> Iterator[EvaluatedShare | None]:
        """In this block, give the replica the mean weights; yield their evaluation on this worker's share."""
        self.channels.begin_evaluation()
        self.channels.transport.barrier()  # before this barrier a partner may still change this replica
        with self._restoring() as own:
            self.replica.use_ema()
            self.trainer.use_mean_of_replicas()
            yield self._measure_share(self.task.evaluation_part_name, self.task.kept_while_training)
        self.replica.vector.copy_(own)

    @contextmanager
    def _restoring(self) -> Iterator[Tensor]:
        """Yield a copy of the weights; if the members change in the block, restore all so that it can be repeated."""
        replica = self.replica
        own, references = (
            replica.vector.clone(),
            [reference.clone() for reference in replica.batch_norm.reference_means],
        )
        try:
            yield own
        except MembersChanged:
            replica.vector.copy_(own)
            for reference, before in zip(replica.batch_norm.reference_means, references, strict=True):
                reference.copy_(before)
            raise

    def _measure_share(self, name: str, keep: int) -> EvaluatedShare | None:
        """Evaluate the network on this worker's share of a part; None if the task has no such part."""
        part: Part | None = getattr(self.task.splits, name)
        if part is None:
            return None
        transport, group, k = self.channels.transport, self.channels.group, self.replica.k
        samples = self.task.share(part, transport.rank // k, transport.size // k)
        network, precision = self.replica.network, self.task.experiment.training.precision
        if group is not None and isinstance(network, Stage) and not network.is_last:
            pass_share(network, part, samples, precision=precision, mark=self.progress.mark)
            group.flush()
            return None
        with holding_random_numbers(self._may_draw):
            share = evaluate_share(
                network,
                part,
                samples,
                self.task.loss,
                self.task.metrics,
                precision=precision,
                mark=self.progress.mark,
                keep=keep,
                name=name,
            )
        return share if self.speaks_for_replica else None

    def _save(self) -> None:
        """Save a checkpoint, if the run has a folder for it, and report it."""
        folder, problem = self.task.checkpoints, ""
        if folder is not None:
            try:
                with self.progress.allow_more_time():
                    checkpoint.save_tensors(self._state(), folder / checkpoint.file_name(self.epoch, self.number))
            except StoreError as error:
                problem = str(error)
        saved = Saved(epoch=self.epoch, seconds=self.time.seconds, problem=problem)
        self.channels.repeat(lambda: self.ask(saved))
        self.time.lap("save")

    def _state(self, done: int = 0) -> dict[str, Any]:
        """Return the state for resuming a run, or for a worker that joins after `done` steps."""
        return {
            "replica": self.replica.state(),
            "trainer": self.trainer.state(),
            "done": done,
            "steps_per_epoch": self.task.steps_per_epoch,
            "best": self.best,
            "epoch": self.epoch,
            "seconds": self.time.seconds,
            "times": self.time.times,
        }

    def resume(self, state: dict[str, Any]) -> None:
        try:
            self.replica.load(state["replica"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ModelError(f"the checkpoint does not fit model {self.task.experiment.model.name}: {error}") from None
        self.trainer.load(state["trainer"])
        # the same progress with different shards
        self.replica.steps = self.replica.steps * self.task.steps_per_epoch // state["steps_per_epoch"]
        self.best = state["best"]
        self.epoch, self.time.seconds, self.time.times = state["epoch"], state["seconds"], dict(state["times"])

    def join(self, state: dict[str, Any]) -> None:
        """Continue from the state of a partner, possibly in the middle of an epoch."""
        self.resume(state)
        self._steps_before_joining, self._has_just_joined = state["done"], True

    def _finish(self) -> None:
        """Report the trained model; repeat this if the members change."""

        def finish() -> None:
            self.channels.begin_evaluation()
            with self._restoring():
                self._use_final_weights()
                self.ask(self._make_final_message())

        self.channels.repeat(finish)

    def _use_final_weights(self) -> None:
        """Replace the weights by the mean of all replicas, or the best so far."""
        self.time.skip()
        waited, _ = self.channels.waited_and_communicated()
        self.replica.use_ema()
        self.trainer.use_mean_of_replicas()
        if not self.task.ends_equal(self.replica.steps):  # it averages the replicas, as in any other round
            self.time.lap("communicate", waited=self.channels.waited_and_communicated()[0] - waited)
        network = self.replica.network
        if self.best is not None:
            network.load_state_dict(self.best)
        if self.task.experiment.training.patience is not None:
            self.channels.transport.broadcast()

    def _make_final_message(self) -> Finished:
        share = self._measure_share("test", stored_predictions.LIMIT)
        self.time.lap("evaluate")
        group = self.channels.group
        return Finished(
            step=self.replica.steps,
            seconds=self.time.seconds,
            times=dict(self.time.times),
            bytes_moved=int(self.trainer.bytes_moved + (group.bytes_moved if group is not None else 0)),
            share=share,
            weights=self.final_weights() if self.channels.transport.rank == 0 else None,
            memory=peak_memory(),
        )

    def final_weights(self) -> dict[str, Tensor]:
        """Return a copy of the network's weights, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.replica.network.state_dict().items()}

    def warn(self, trouble: str) -> None:
        if trouble:
            self.emit(Warned(at=self.stopwatch.now(), text=trouble))

    def _emit_times(self) -> None:
        """Emit the sums of the time, unless workers share it; then their owner emits them."""
        if not self._shares_time:
            self.time.emit_sums()

    def emit_metric(self, name: str, value: float, step: int, *, worker: int | None = None) -> None:
        """Record a measurement of training, by default of this worker."""
        self.emit(
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


def _may_draw(task: Task, network: nn.Module) -> bool:
    """Return whether training may draw random numbers: not if all parts are built in, without dropout."""
    model, optimizer = task.experiment.model.name, task.experiment.training.optimizer
    built_in = isinstance(model, str) and model in MODELS and isinstance(optimizer, str) and ":" not in optimizer
    if not built_in or task.loss.own or isinstance(task.splits.train, DatasetPart):
        return True
    return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in network.modules())
