"""The coordinator answers the workers' messages: it evaluates epochs, commits checkpoints, and assembles results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch

from tenfold.common.metric_traits import LOSS, main_metric
from tenfold.data import Part
from tenfold.errors import RunTakenOver, StopTraining, StoreError, WorkerLost
from tenfold.runs import checkpoint, stored_predictions
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import (
    CheckpointFailed,
    Emit,
    EpochEnded,
    Event,
    Metric,
    Note,
    Started,
    Stopwatch,
    Warned,
    WorkerDropped,
    WorkerJoined,
)
from tenfold.runs.stored_predictions import Predictions
from tenfold.training.evaluation import (
    EvaluatedShare,
    describe_kept_outputs,
    describe_missing_predictions,
    make_predictions,
    merge_shares,
    values_of,
    without_large_outputs,
)
from tenfold.training.measures import describe_equal_targets, is_reached, output_kind, require_direction
from tenfold.workers.divided import merge_parts
from tenfold.workers.task import (
    Task,
    describe_few_steps,
    describe_line_searches,
    describe_untrained_loss,
    make_network,
)

# The messages between workers and the coordinator. All workers send the same kinds of messages in the same order.


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The evaluation of this worker's share of the evaluation part, in the middle of an epoch."""

    epoch: int
    step: int
    seconds: float
    share: EvaluatedShare | None


@dataclass(frozen=True, kw_only=True)
class EpochTrained(Evaluated):
    """The end of an epoch: the samples of this worker, and the evaluation."""

    loss: float
    """Sum over samples."""
    samples: int
    num_correct: float = 0.0
    """How many of its samples were classified correctly, of the `num_labeled` whose class was compared."""
    num_labeled: int = 0


@dataclass(frozen=True, kw_only=True)
class Saved:
    """This worker's checkpoint of an epoch was written, or could not be written."""

    epoch: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of training: the evaluation of this worker's share of the test part, its times, and rank 0's weights."""

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
    """The coordinator's answer: stop or continue, and whether the epoch was the best and its checkpoint was saved."""

    stop: bool = False
    best: bool = False
    saved: bool = True
    loss: float | None = None
    """After an epoch: the loss on the evaluation part, or the training loss if there is none."""
    metric: float | None = None
    """After an epoch: the first metric, if there is one."""


@dataclass(frozen=True)
class LostWorker:
    """A lost worker in a run that continued without it: an entry of `lost` in a result or checkpoint."""

    worker: int
    why: str
    left: int
    """How many workers continued."""
    epoch: int
    """The epoch, from 1, that they continued with."""
    step: int | None = None
    """Where the lost worker is replaced: the last step, over the run, that includes its work."""
    joined: int | None = None
    """The step after which another worker took its place."""

    @classmethod
    def of(cls, error: WorkerLost, left: int, resumption: Resumption | None) -> "LostWorker":
        """Return the lost worker of an error; `resumption` is the checkpoint from which the others continue."""
        return cls(error.rank, str(error), left, (resumption.manifest["epoch"] if resumption else 0) + 1)

    def event(self, stopwatch: Stopwatch) -> WorkerDropped:
        workers = "1 worker continues" if self.left == 1 else f"{self.left} workers continue"
        text = f"{self.why}; {workers} from epoch {self.epoch}"
        return WorkerDropped(at=stopwatch.now(), text=text, epoch=self.epoch - 1, worker=self.worker)


def lost_in(manifest: Mapping[str, Any]) -> list[LostWorker]:
    """Return the lost workers that a checkpoint's manifest lists."""
    return [LostWorker(**item) for item in manifest.get("lost", [])]


class Coordinator:
    """Receives one message from every worker, in the order of ranks, and answers all with one decision.

    It runs in the main process (under a launcher, on rank 0). `WorkerPool.messages` watches the processes.
    """

    def __init__(
        self,
        task: Task,
        stopwatch: Stopwatch,
        emit: Emit,
        manifest: dict[str, Any] | None = None,
        lost: Sequence[LostWorker] | None = None,
    ) -> None:
        """Continue from the manifest of a checkpoint, if given; `lost` replaces its list of lost workers."""
        self.task = task
        self.stopwatch = stopwatch
        self.emit = emit
        manifest = manifest or {}
        self.best_loss: float | None = manifest.get("best_loss")
        self.best_epoch: int | None = manifest.get("best_epoch")
        self.measured: dict[str, float] = manifest.get("measured", {})
        self.epochs: int = manifest.get("epochs", 0)
        self.reached: dict[str, Any] | None = manifest.get("reached")
        """Steps and seconds of training after which the target was reached."""
        self.stopped_by = ""
        """The reason of the callback that asked to stop; "" if none did."""
        self.lost = list(lost) if lost is not None else lost_in(manifest)
        """The workers that were lost while the others continued."""
        self.members = list(range(task.workers))
        """The workers that take part."""
        self.skipped: int = manifest.get("skipped", 0)
        """Samples that were not trained on because their workers were lost and not yet replaced."""
        self._absent: dict[int, int] = {}
        self.weights: dict[str, Any] = {}
        self.outputs: Any = None
        """The final network's outputs on the test part, unless they are too large to be kept."""
        self.predictions: dict[str, Predictions] = {}
        """By part, the final network's outputs, to be stored with the run."""
        self.result: dict[str, Any] = {}
        self._last: dict[str, EvaluatedShare] = {}
        """By part, the last evaluation, with the outputs that are stored with the run."""
        self._last_step: int | None = None
        self._are_checked = False

    def start(self, *, resumed: bool) -> None:
        """Emit the start or continuation of training, with the numbers that a display needs."""
        for note in self.task.splits.notes:
            self.emit(Note(at=self.stopwatch.now(), text=note))
        texts = [describe_equal_targets(self.task.splits.train.targets), describe_line_searches(self.task.experiment)]
        if not resumed:
            texts += [describe_few_steps(self.task), describe_untrained_loss(self.task)]
        for text in texts:
            if text:
                self.emit(Warned(at=self.stopwatch.now(), text=text))
        self.emit(
            Started(
                at=self.stopwatch.now(),
                epoch=self.epochs,
                steps_per_epoch=self.task.steps_per_epoch,
                batch_size=self.task.experiment.training.samples_per_step,
                workers=self.task.workers,
                train_samples=len(self.task.splits.train),
                resumed=resumed,
            )
        )

    def lose(self, error: WorkerLost, members: Sequence[int]) -> None:
        """Record that a worker was lost and the others continue without it until it is replaced."""
        self.members = list(members)
        worker = LostWorker(error.rank, str(error), len(members), self.epochs + 1, step=0)
        self.lost.append(worker)
        self.emit(worker.event(self.stopwatch))

    def note_absence(self, step: int) -> None:
        """Record the last step to which the workers just lost contributed."""
        for worker in set(range(self.task.workers)) - {*self.members, *self._absent}:
            self._absent[worker] = step
            self._update_lost(worker, step=step)

    def join(self, worker: int, step: int, pid: int) -> None:
        """Record that another process has replaced a lost worker after this step."""
        self.members = sorted([*self.members, worker])
        self.skipped += self._samples_of(worker, self._absent.pop(worker), step)
        self._update_lost(worker, joined=step)
        text = f"worker {worker} was replaced by process {pid} after step {step}; {len(self.members)} workers train"
        self.emit(WorkerJoined(at=self.stopwatch.now(), text=text, epoch=self.epochs, worker=worker))

    def _update_lost(self, worker: int, **fields: Any) -> None:
        latest = max(index for index, item in enumerate(self.lost) if item.worker == worker)
        self.lost[latest] = replace(self.lost[latest], **fields)

    def _samples_of(self, worker: int, after: int, until: int) -> int:
        """Return the number of a worker's samples in the steps after `after` up to `until` of the run."""
        sizes = self.task.batch_sizes
        return sum(sizes[step % len(sizes)][worker] for step in range(after, until))

    def _skipped_until(self, step: int) -> int:
        """Return the number of samples up to this step that no worker has trained on."""
        return self.skipped + sum(self._samples_of(worker, after, step) for worker, after in self._absent.items())

    def decide(self, messages: Sequence[Message]) -> Decision:
        """Return the decision on messages of one kind, one from each worker."""
        if isinstance(messages[0], EpochTrained):
            return self._end_epoch(cast(Sequence[EpochTrained], messages))
        if isinstance(messages[0], Evaluated):
            self._evaluate(cast(Sequence[Evaluated], messages))
            return Decision(stop=self._stops)
        if isinstance(messages[0], Saved):
            return self._commit(cast(Sequence[Saved], messages))
        return self._finish(cast(Sequence[Finished], messages))

    def _end_epoch(self, trained: Sequence[EpochTrained]) -> Decision:
        first = trained[0]
        self.epochs, self._last_step = first.epoch + 1, first.step
        samples = sum(message.samples for message in trained)
        train_loss = sum(message.loss for message in trained) / samples
        self._emit_metric(trained, "train", "epoch_loss", train_loss)
        measured = {"train_loss": train_loss}
        if num_labeled := sum(message.num_labeled for message in trained):
            measured["train_accuracy"] = sum(message.num_correct for message in trained) / num_labeled
            self._emit_metric(trained, "train", "epoch_accuracy", measured["train_accuracy"])
        loss = train_loss
        if self.task.evaluation_part is not None:
            self._evaluate(trained)
            loss = self.measured["loss"]
        best = self.best_loss is None or math.isnan(self.best_loss) or loss < self.best_loss
        if best:
            self.best_loss, self.best_epoch = loss, first.epoch
        if self.task.evaluation_part is not None:
            measured |= {f"{self.task.evaluation_part_name}_{name}": value for name, value in self.measured.items()}
        self._announce(EpochEnded(at=self.stopwatch.now(), epoch=first.epoch, metrics=measured))
        patience = self.task.experiment.training.patience
        stop = patience is not None and self.best_epoch is not None and first.epoch - self.best_epoch >= patience
        metric = main_metric(name for name in self.task.metrics if name in self.measured)
        main_value = self.measured[metric] if metric is not None and self.task.evaluation_part is not None else None
        return Decision(stop=stop or self._stops, best=best, loss=loss, metric=main_value)

    @property
    def _stops(self) -> bool:
        return self.reached is not None or bool(self.stopped_by)

    def _announce(self, event: Event) -> None:
        """Emit an event; listeners may request a stop."""
        try:
            self.emit(event)
        except StopTraining as stop:
            self.stopped_by = self.stopped_by or str(stop) or "a callback"

    def _evaluate(self, messages: Sequence[Evaluated]) -> None:
        assert self.task.evaluation_part is not None
        name = self.task.evaluation_part_name
        self.measured = self._measure(self.task.evaluation_part, name, [message.share for message in messages])
        for metric, value in self.measured.items():
            self._emit_metric(messages, name, metric, value)
        if self.reached is None and self._reaches_target():
            self.reached = {
                "steps_to_target": messages[0].step,
                "seconds_to_target": max(message.seconds for message in messages),
            }

    def _reaches_target(self) -> bool:
        training = self.task.experiment.training
        if training.target is None:
            return False
        metric = main_metric(name for name in self.task.metrics if name in self.measured) or LOSS
        lower = require_direction(training, metric, "the target")
        return is_reached(self.measured[metric], training.target, lower=lower)

    def _measure(self, part: Part, name: str, shares: Sequence[EvaluatedShare | None]) -> dict[str, float]:
        share = merge_shares([share for share in shares if share is not None])
        self._check_outputs(share)
        needing = [label for label, metric in self.task.metrics.items() if metric.needs_all_outputs]
        if not self._are_checked and needing and share.output_bytes > stored_predictions.LIMIT:
            self.emit(Note(at=self.stopwatch.now(), text=describe_kept_outputs(needing, name, share.output_bytes)))
        self._are_checked = True
        self._last[name] = without_large_outputs(share)
        return values_of(share, part, self.task.loss, self.task.metrics, name=name)

    def _check_outputs(self, share: EvaluatedShare) -> None:
        """Warn, at the first evaluation, about a network that ends with a softmax, or with an unexpected sigmoid."""
        if self._are_checked or share.main_shape is None:
            return
        training, text = self.task.experiment.training, ""
        kind = output_kind(training, self.task.splits.classes, torch.empty(share.main_shape, device="meta"))
        if kind == "classes" and share.are_probabilities:
            text = (
                "the network's outputs are probabilities, where cross-entropy and predict_proba take logits; leave out "
                "the softmax at its end"
                if training.loss in (None, "cross-entropy")
                else "the network's outputs are probabilities, and predict_proba applies another softmax to them; "
                "if the loss takes logits, leave out the softmax at the end of the network"
            )
        elif (
            kind != "probability"
            and share.is_unit
            and self.task.loss.own
            and (accuracy := self.task.metrics.get("accuracy")) is not None
            and not accuracy.own  # the built-in accuracy reads the same outputs as the user's loss
        ):
            text = (
                "the network's outputs lie between 0 and 1, as after a sigmoid, but accuracy takes them for logits, of "
                'which all above 0 mean 1; set loss = torch.nn.BCELoss(), or leave out the sigmoid and set loss = "bce"'
            )
        if text:
            self.emit(Warned(at=self.stopwatch.now(), text=text))

    def _keep_predictions(self) -> None:
        """Keep the outputs of the final network and their targets."""
        task, training = self.task, self.task.experiment.training
        if not training.save_predictions:
            return
        for name in ("test", "validation"):
            share = self._last.get(name)
            if share is None or (name == "validation" and training.patience is not None):
                continue
            made = make_predictions(training, task.splits, name, share)
            if made is not None:
                self.predictions[name] = made
            elif text := describe_missing_predictions(share, name):
                self.emit(Note(at=self.stopwatch.now(), text=text))

    def _emit_metric(self, messages: Sequence[Evaluated], part: Any, name: str, value: float) -> None:
        """Emit the metrics after a step of all workers, with the time of the slowest one, as in the result."""
        at, first, seconds = self.stopwatch.now(), messages[0], max(message.seconds for message in messages)
        self._announce(
            Metric(at=at, name=name, value=value, part=part, step=first.step, epoch=first.epoch, seconds=seconds)
        )

    def _commit(self, saved: Sequence[Saved]) -> Decision:
        """Commit the checkpoint that all workers have saved; if one failed, report it and continue."""
        if self.task.checkpoints is None:
            return Decision()
        problem = next((message.problem for message in saved if message.problem), "")
        try:
            if problem:
                raise StoreError(problem)
            checkpoint.commit(self.task.checkpoints, self._manifest(saved[0]))
        except RunTakenOver:
            raise
        except StoreError as error:
            self.emit(CheckpointFailed(at=self.stopwatch.now(), text=str(error), epoch=saved[0].epoch - 1))
            return Decision(saved=False)
        return Decision()

    def _manifest(self, saved: Saved) -> dict[str, Any]:
        """Return the coordinator's state for a checkpoint; a resumed coordinator starts from it."""
        manifest: dict[str, Any] = {
            "epoch": saved.epoch,
            "epochs": self.epochs,
            "workers": self.task.workers,
            "seconds": saved.seconds,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "measured": self.measured,
            "reached": self.reached,
            "lost": [asdict(item) for item in self.lost],
        }
        if self._absent:  # absent workers resume from another worker's state
            missing, first = set(self._absent), self.members[0]
            manifest["ranks"] = [first if rank in missing else rank for rank in range(self.task.workers)]
        if skipped := self._skipped_until(saved.epoch * self.task.steps_per_epoch):
            manifest["skipped"] = skipped
        return manifest

    def _finish(self, finished: Sequence[Finished]) -> Decision:
        """Measure the test part with the final network, and assemble the result."""
        parts = [message.weights for message in finished if message.weights is not None]
        self.weights = (
            parts[0] if self.task.division is None else merge_parts(parts, make_network(self.task).state_dict())
        )
        if self.task.splits.test is not None:
            self.measured = self._measure(self.task.splits.test, "test", [message.share for message in finished])
            test = self._last["test"]
            self.outputs = None if test.is_main_output else test.outputs
        self._keep_predictions()
        self.result = self._make_result(finished)
        return Decision()

    def _make_result(self, finished: Sequence[Finished]) -> dict[str, Any]:
        training, splits = self.task.experiment.training, self.task.splits
        part = "test" if splits.test is not None else self.task.evaluation_part_name
        seconds = max(message.seconds for message in finished)
        steps, full_epochs = max(message.step for message in finished), self.epochs * self.task.steps_per_epoch
        cut = self._last_step is not None and self._last_step < full_epochs  # stopped in the middle of an epoch
        samples = self.epochs * len(splits.train)
        if cut:
            samples = samples * steps // full_epochs
        samples -= self._skipped_until(steps)
        best_epoch = self.best_epoch + 1 if training.patience is not None and self.best_epoch is not None else None
        kinds = sorted({kind for message in finished for kind in message.times})
        return {
            "part": part if self.measured else None,
            "metrics": self.measured,
            "seconds": seconds,
            "times": {kind: sum(item.times.get(kind, 0.0) for item in finished) / len(finished) for kind in kinds},
            "epochs": self.epochs,
            "steps": steps,
            "samples": samples,
            "samples_per_second": samples / seconds if seconds else None,
            "bytes_moved": max(message.bytes_moved for message in finished),
            "peak_memory": [message.memory for message in finished],
            "workers": self.task.workers,
            "lost": [asdict(item) for item in self.lost],
            "threads": self.task.threads,
            "best_epoch": best_epoch,
            "stopped_early": cut or self.epochs < training.epochs,
            **({"start_copy_seconds": splits.copy_seconds} if splits.copy_seconds else {}),
            **(self.reached or {}),
            **({"stopped_by": self.stopped_by} if self.stopped_by else {}),
        }
