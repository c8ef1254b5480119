"""The live progress of runs, folds and grids on a terminal."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tenfold.common.metric_traits import loss_last
from tenfold.experiment import Experiment
from tenfold.reports import summary
from tenfold.reports.display import Display
from tenfold.reports.formatting import count, duration, metric_value, one_line, plural
from tenfold.reports.summary import training_time
from tenfold.runs import Run, events


class RankTimes:
    """Adds up the spans of some ranks in each epoch."""

    def __init__(self, ranks: set[int] | None = None) -> None:
        self._ranks = ranks
        self._sums: dict[int, dict[str, float]] = {}

    def add(self, span: events.Span) -> None:
        if self._ranks is None or span.worker in self._ranks:
            sums = self._sums.setdefault(span.worker, {})
            sums[span.kind] = sums.get(span.kind, 0.0) + span.seconds

    def lines(self) -> list[str]:
        lines = [
            f"[rank {rank}] " + "  ".join(f"{kind} {duration(seconds)}" for kind, seconds in self._sums[rank].items())
            for rank in sorted(self._sums)
        ]
        self._sums = {}
        return lines


class RunProgress(Display):
    """A listener that shows a run's progress while its `with` block lasts.

    Every epoch leaves a line with the training time so far; on a terminal, a bar below shows the progress of the
    current epoch. Events only store values: rich draws in a separate thread. It writes to standard error unless it is
    given a console. Every time is marked as measured or, for a virtual cluster, predicted. `ranks` adds lines with the
    times of these ranks by kind.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        quiet: bool = False,
        console: Console | None = None,
        ranks: RankTimes | None = None,
    ) -> None:
        self.epochs = experiment.training.epochs
        super().__init__(quiet=quiet, console=console)
        self._ranks = ranks
        self._virtual = experiment.machine.is_virtual
        self._clock = summary.PREDICTED if self._virtual else summary.MEASURED
        self._steps_per_epoch = 0
        self._samples = 0
        self._latest: events.Metric | None = None
        self._score = ""
        self._epoch: dict[str, events.Metric] = {}
        self._first: events.Metric | None = None  # the time left is estimated from here on, which excludes startup
        self._before: tuple[float, int] | None = (0.0, 0)  # training time and step at the end of the last epoch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_epoch()
        super().__exit__(kind, error, trace)

    def listen(self, event: events.Event) -> None:
        if self.quiet:
            return
        if type(event) is events.Span:
            if self._ranks is not None:
                self._ranks.add(event)
            return
        if isinstance(event, events.WorkerDropped):
            self._end_epoch()
            self._say(f"lost: {one_line(event.text)}", style="yellow")
            return
        if isinstance(event, events.WorkerJoined):
            self._say(f"joined: {one_line(event.text)}")
            return
        if event.worker:
            if isinstance(event, events.Warned):
                self._warn(event, f"[rank {event.worker}] ")
            return
        if type(event) is events.Metric:
            if event.part == "train" and event.name == "loss":
                self._turn_to(event.epoch)
                if self._virtual:  # the remaining time is the time of the simulation itself
                    event = replace(event, at=time.monotonic())
                self._before = self._before or (event.seconds, event.step)
                self._first = self._first or event
                self._latest = event
            elif event.part != "train" or event.name == "epoch_loss":
                self._turn_to(event.epoch)
                self._epoch[f"{event.part} {one_line(event.name)}"] = event
        elif isinstance(event, events.Lifecycle):
            self._entered(event)

    def _turn_to(self, epoch: int) -> None:
        if self._epoch and next(iter(self._epoch.values())).epoch != epoch:
            self._end_epoch()

    def _entered(self, stage: events.Lifecycle) -> None:
        if isinstance(stage, events.Started):
            self._steps_per_epoch, self._samples = stage.steps_per_epoch, stage.train_samples
            if stage.resumed:
                self._before = None
                self._say(f"resumed at epoch {stage.epoch + 1} of {self.epochs}")
        elif isinstance(stage, events.Warned):
            self._warn(stage)
        elif isinstance(stage, events.Note) and not self._steps_per_epoch:  # before training: where it runs
            self._say(one_line(stage.text), style="dim")
        elif isinstance(stage, events.EpochEnded | events.Ended):
            self._end_epoch()

    def _end_epoch(self) -> None:
        """Write the line of an epoch, if anything was measured at its end."""
        if not self._epoch:
            return
        last = next(reversed(self._epoch.values()))
        parts = [name.partition(" ")[0] for name in self._epoch]
        texts = {
            name: f"{name.removeprefix('train epoch_')} {metric_value(name, metric.value)}"
            for name, metric in self._epoch.items()
            if name.partition(" ")[2] != "loss" or parts.count(name.partition(" ")[0]) == 1  # the loss where alone
        }
        evaluated = [name for name in texts if not name.startswith("train ")]
        seconds = f"{duration(last.seconds)} {self._clock}"
        self._say("  ".join([self._epoch_of(last), *texts.values(), *self._speed(last), seconds]))
        for line in self._ranks.lines() if self._ranks else []:
            self._say(f"{line} {self._clock}", style="dim")
        self._score = texts[evaluated[0] if evaluated else list(texts)[-1]]
        self._before = (last.seconds, last.step)
        self._epoch = {}

    def _epoch_of(self, metric: events.Metric) -> str:
        return f"epoch {metric.epoch + 1}/{self.epochs}"

    def _speed(self, metric: events.Metric) -> list[str]:
        """Return the samples per second since the end of the last epoch, if known."""
        seconds, step = self._before or (metric.seconds, metric.step)
        if not self._steps_per_epoch or not self._samples or metric.seconds <= seconds or metric.step <= step:
            return []
        per_second = self._samples * (metric.step - step) / self._steps_per_epoch / (metric.seconds - seconds)
        return [f"{count(per_second)} samples/s{f' {self._clock}' if self._virtual else ''}"]

    def _time_left(self, metric: events.Metric) -> list[str]:
        first = self._first
        if not self._steps_per_epoch or first is None or metric.step <= first.step:
            return []
        steps_left = max(0, self.epochs * self._steps_per_epoch - metric.step)
        return [f"{_clock((metric.at - first.at) / (metric.step - first.step) * steps_left)} left"]

    def drawing(self) -> Table:
        latest, steps = self._latest, self._steps_per_epoch
        if latest is None:
            return draw_bars([], f"starting, {plural(self.epochs, 'epoch')}")
        done = min(1.0, (latest.step - latest.epoch * steps) / steps) if steps else 0.0
        how_far: float | str = done if self.console.width >= 100 else f"{done:3.0%}"
        if done == 1.0 and not self._epoch:  # all steps of the epoch are done, and nothing is measured yet
            how_far = "evaluating"
        score = [self._score] if self._score else []
        details = [f"loss {metric_value('loss', latest.value)}", *score, *self._time_left(latest), *self._speed(latest)]
        return draw_bars([(self._epoch_of(latest), how_far, "  ".join(details))])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


BAR = 24


def draw_bars(rows: Sequence[tuple[str, float | str, str]], summary: str = "") -> Table:
    """Draw a line for each name with its progress, as a bar or in words, and details; a summary follows."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, how_far, details in rows:
        bar = (
            Text(how_far) if isinstance(how_far, str) else ProgressBar(total=1, completed=min(1.0, how_far), width=BAR)
        )
        table.add_row(Text(name), bar, Text(details))
    if summary:
        table.add_row(Text(summary, style="dim"), *([Text(), Text()] if rows else []))
    for column in table.columns:
        column.no_wrap = True
    return table


@dataclass
class _Fold:
    name: str
    status: str = "waiting"
    steps_per_epoch: int = 0
    step: int = 0
    loss: float | None = None
    measured: dict[str, float] = field(default_factory=dict)

    def share(self, epochs: int) -> float:
        if self.status in ("finished", "failed"):
            return 1.0
        return min(1.0, self.step / (self.steps_per_epoch * epochs)) if self.steps_per_epoch else 0.0


class JobTable:
    """The running jobs of an executor, each with its node and progress, and the estimated time left for all of them."""

    ROWS = 16
    """The maximum number of jobs shown."""

    def __init__(self) -> None:
        self._latest: events.JobsChanged | None = None
        self._first: tuple[float, float] | None = None
        """The time when the table was first shown, and the number of jobs completed by then."""

    def update(self, event: events.JobsChanged) -> None:
        self._latest = event
        self._first = self._first or (event.at, self._work(event))

    @staticmethod
    def _work(event: events.JobsChanged) -> float:
        return sum(job.done for job in event.jobs)

    def drawing(self) -> Table:
        """Draw the running jobs and a summary line; nothing until the first job starts."""
        if self._latest is None or self._first is None:
            return Table.grid()
        jobs, drawn = self._latest.jobs, Table.grid()
        running = [job for job in jobs if job.state == "running"]
        rows = [
            (one_line(job.label), job.done, f"{job.done:4.0%}  {one_line(job.node)}") for job in running[: self.ROWS]
        ]
        drawn.add_row(draw_bars(rows, f"and {len(running) - self.ROWS} more" if len(running) > self.ROWS else ""))
        done = sum(job.state == "done" for job in jobs)
        states = f"{done} of {plural(len(jobs), 'job')} done, {len(running)} running, "
        began, before = self._first
        work = self._work(self._latest)
        left = ""
        if work > before:
            left = f", about {_clock((len(jobs) - work) * (self._latest.at - began) / (work - before))} left"
        drawn.add_row(Text(f"{states}{len(jobs) - done - len(running)} waiting{left}", style="dim"))
        return drawn


class FoldProgress(Display):
    """A listener that shows a cross-validation's progress while its `with` block lasts.

    A line is written for each finished fold; on a terminal, bars below show the progress of the folds in training. It
    writes to standard error unless it is given a console.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self.epochs = 1
        self._folds: list[_Fold] = []
        self._began = 0.0
        self._jobs = JobTable()

    def listen(self, event: events.Event) -> None:
        if isinstance(event, events.Metric) and event.fold_index < len(self._folds):
            self._measured(self._folds[event.fold_index], event)
        elif isinstance(event, events.FoldsStarted):
            self._begin(event)
        elif isinstance(event, events.FoldChanged):
            self._entered(self._folds[event.fold_index], event)
        elif isinstance(event, events.JobsChanged):
            self._jobs.update(event)
        elif isinstance(event, events.Warned):
            self._warn(event)
        elif isinstance(event, events.Note):
            self._say(one_line(event.text), style="dim")

    def _begin(self, event: events.FoldsStarted) -> None:
        self.epochs, self._began = event.epochs, time.monotonic()
        self._folds = [_Fold(name) for name in event.names]
        self._say(f"{event.stage}: {plural(len(self._folds), 'fold')}, {event.mode.replace('-', ' ')}", style="dim")

    def _entered(self, fold: _Fold, event: events.FoldChanged) -> None:
        fold.status = event.status
        fold.steps_per_epoch = event.steps_per_epoch or fold.steps_per_epoch
        if fold.status == "failed":
            self._say(f"{fold.name}  failed: {one_line(event.error)}", style="red")
        elif fold.status == "finished":
            scores = _scores(event.metrics)
            seconds = f"{duration(event.seconds)} {summary.MEASURED}"
            self._say("  ".join([fold.name, *(f"validation {score}" for score in scores), seconds]))

    def _measured(self, fold: _Fold, metric: events.Metric) -> None:
        fold.step = max(fold.step, metric.step)
        if metric.part == "validation":
            fold.measured[metric.name] = metric.value
        elif metric.name == "loss":
            fold.loss = metric.value

    def drawing(self) -> Table:
        rows = []
        for fold in self._folds:
            if fold.status in ("started", "resumed"):
                epoch = min(fold.step // (fold.steps_per_epoch or 1) + 1, self.epochs)
                loss = [f"loss {metric_value('loss', fold.loss)}"] if fold.loss is not None else []
                details = [f"epoch {epoch}/{self.epochs}", *loss, *_scores(fold.measured)]
                rows.append((fold.name, fold.share(self.epochs), "  ".join(details)))
        done = sum(fold.status in ("finished", "failed") for fold in self._folds)
        summary = f"{done} of {plural(len(self._folds), 'fold')} done{self._time_left()}" if self._folds else "starting"
        drawn = Table.grid()
        if (jobs := self._jobs.drawing()).row_count:
            drawn.add_row(jobs)
        drawn.add_row(draw_bars(rows, summary))
        return drawn

    def _time_left(self) -> str:
        share = sum(fold.share(self.epochs) for fold in self._folds) / len(self._folds)
        return f", {_clock((time.monotonic() - self._began) * (1 / share - 1))} left" if 0.02 < share < 1 else ""


def _scores(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics as text; the loss only if there is no other metric."""
    names = [name for name in metrics if name != "loss"] or list(metrics)
    return [f"{one_line(name)} {metric_value(name, metrics[name])}" for name in names]


def run_display(experiment: Experiment, **shown: Any) -> RunProgress | FoldProgress:
    """Return the display of a training run, or of a cross-validation if the experiment has folds."""
    folded = experiment.parallel.folds is not None
    return FoldProgress(**shown) if folded else RunProgress(experiment, **shown)


@dataclass(frozen=True)
class Turn:
    """The start or the end of one run of a comparison."""

    place: int
    """Its position among all runs, from 1."""
    count: int
    label: str
    """Its settings in words."""
    experiment: Experiment
    run: Run | None = None
    recorded: bool = False
    """Whether a recorded run was reused."""
    error: str = ""
    waits: bool = False
    """Whether this comparison waits for the result because another comparison is already running it."""

    @property
    def begins(self) -> bool:
        return self.run is None and not self.error and not self.waits


class GridProgress(Display):
    """Shows the progress of a comparison while its `with` block lasts.

    Pass its `watch` and `listen` on to a comparison. On a terminal it shows the current run, its progress and the time
    left; elsewhere it only writes a line for each finished run.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self._label = ""
        self._running: Display | None = None
        self._jobs = JobTable()

    def start_run(self, label: str, experiment: Experiment) -> None:
        self._label = label
        self._running = run_display(experiment, console=self.console)
        self._running.writes_lines = False

    def watch(self, turn: Turn) -> None:
        """Show the current run, and write a line for each finished run."""
        line = f"{turn.place:>{len(str(turn.count))}}/{turn.count}  {turn.label}"
        if turn.begins:
            self.start_run(line, turn.experiment)
        elif turn.waits:
            self._say(f"{line}: waiting for another comparison that is running it", style="dim")
        elif turn.run is None:
            self.end_run(f"{line}: failed: {turn.error}", failed=True)
        else:
            name, value = next(iter(loss_last(turn.run.metrics).items()), ("loss", None))
            recorded = "already recorded, " if turn.recorded else ""
            self.end_run(f"{line}: {recorded}{training_time(turn.run)}, {name} {metric_value(name, value)}")

    def end_run(self, line: str, *, failed: bool = False) -> None:
        self._running = None
        self._say(line, style="red" if failed else "")

    def listen(self, event: events.Event) -> None:
        if isinstance(event, events.Warned):
            self._warn(event)
        elif isinstance(event, events.JobsChanged):
            self._jobs.update(event)
        elif self._running is not None:
            self._running.listen(event)
        elif isinstance(event, events.Note):
            self._say(event.text, style="dim")

    def drawing(self) -> Table:
        drawn = Table.grid()
        if self._running is not None:
            drawn.add_row(Text(self._label, style="dim", no_wrap=True, overflow="ellipsis"))
            drawn.add_row(self._running.drawing())
        if (jobs := self._jobs.drawing()).row_count:
            drawn.add_row(jobs)
        return drawn
