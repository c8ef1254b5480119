"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

import time
from dataclasses import replace
from types import TracebackType

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tenfold.experiment import Experiment
from tenfold.report import clocks
from tenfold.report.formatting import count, duration, metric_value, one_line, plural
from tenfold.report.live.display import Display
from tenfold.report.live.rank_times import RankTimes
from tenfold.runs import Ended, EpochEnded, Event, Lifecycle, Metric, Span, Started, Warned, WorkerDropped, WorkerJoined


class RunProgress(Display):
    """A listener that shows a run's progress while its `with` block lasts.

    Every epoch leaves a line with the training time so far; on a terminal, a bar below shows the progress of the
    current epoch. Events only store values: rich draws in a separate thread. It writes to standard error unless it is
    given a console. Every time is marked as measured or, for a virtual cluster, predicted. `ranks` adds lines that show
    what these ranks spent their time on.
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
        self._virtual = experiment.machine.engine == "virtual"
        self._clock = clocks.PREDICTED if self._virtual else clocks.MEASURED
        self._steps_per_epoch = 0
        self._samples = 0
        self._latest: Metric | None = None
        self._score = ""
        self._epoch: dict[str, Metric] = {}
        self._first: Metric | None = None  # the time left is estimated from here on, which excludes startup
        self._before: tuple[float, int] | None = (0.0, 0)  # training time and step at the end of the last epoch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_epoch()
        super().__exit__(kind, error, trace)

    def listen(self, event: Event) -> None:
        """Update what is shown by an event."""
        if self.quiet:
            return
        if type(event) is Span:
            if self._ranks is not None:
                self._ranks.add(event)
            return
        if isinstance(event, WorkerDropped):
            self._end_epoch()
            self._say(f"lost: {one_line(event.text)}", style="yellow")
            return
        if isinstance(event, WorkerJoined):
            self._say(f"joined: {one_line(event.text)}")
            return
        if event.worker:
            if isinstance(event, Warned):
                self._warn(event, f"[rank {event.worker}] ")
            return
        if type(event) is Metric:
            if event.part == "train" and event.name == "loss":
                self._turn_to(event.epoch)
                if self._virtual:  # the time left is that of the simulation itself
                    event = replace(event, at=time.monotonic())
                self._before = self._before or (event.seconds, event.step)
                self._first = self._first or event
                self._latest = event
            elif event.part != "train" or event.name == "epoch_loss":
                self._turn_to(event.epoch)
                self._epoch[f"{event.part} {one_line(event.name)}"] = event
        elif isinstance(event, Lifecycle):
            self._entered(event)

    def _turn_to(self, epoch: int) -> None:
        if self._epoch and next(iter(self._epoch.values())).epoch != epoch:
            self._end_epoch()

    def _entered(self, stage: Lifecycle) -> None:
        if isinstance(stage, Started):
            self._steps_per_epoch, self._samples = stage.steps_per_epoch, stage.train_samples
            if stage.resumed:
                self._before = None
                self._say(f"resumed at epoch {stage.epoch + 1} of {self.epochs}")
        elif isinstance(stage, Warned):
            self._warn(stage)
        elif isinstance(stage, EpochEnded | Ended):
            self._end_epoch()

    def _end_epoch(self) -> None:
        """Write the line of an epoch, if anything was measured at its end."""
        if not self._epoch:
            return
        last = next(reversed(self._epoch.values()))
        shown = {name: metric for name, metric in self._epoch.items() if _is_shown(name, self._epoch)}
        texts = {name: f"{name.removeprefix('train epoch_')} {metric_value(name, shown[name].value)}" for name in shown}
        evaluated = [name for name in texts if not name.startswith("train ")]
        seconds = f"{duration(last.seconds)} {self._clock}"
        self._say("  ".join([self._epoch_of(last), *texts.values(), *self._speed(last), seconds]))
        for line in self._ranks.lines() if self._ranks else []:
            self._say(f"{line} {self._clock}", style="dim")
        self._score = texts[evaluated[0] if evaluated else list(texts)[-1]]
        self._before = (last.seconds, last.step)
        self._epoch = {}

    def _epoch_of(self, metric: Metric) -> str:
        return f"epoch {metric.epoch + 1}/{self.epochs}"

    def _speed(self, metric: Metric) -> list[str]:
        """Return the samples per second since the end of the last epoch, if known."""
        seconds, step = self._before or (metric.seconds, metric.step)
        if not self._steps_per_epoch or not self._samples or metric.seconds <= seconds or metric.step <= step:
            return []
        per_second = self._samples * (metric.step - step) / self._steps_per_epoch / (metric.seconds - seconds)
        return [f"{count(per_second)} samples/s{f' {self._clock}' if self._virtual else ''}"]

    def _time_left(self, metric: Metric) -> list[str]:
        """Return the estimated time left, including evaluation."""
        first = self._first
        if not self._steps_per_epoch or first is None or metric.step <= first.step:
            return []
        steps_left = max(0, self.epochs * self._steps_per_epoch - metric.step)
        return [f"{_clock((metric.at - first.at) / (metric.step - first.step) * steps_left)} left"]

    def drawing(self) -> Table:
        """Draw the progress of the run."""
        latest, steps = self._latest, self._steps_per_epoch
        line = Table.grid(padding=(0, 2, 0, 0))
        if latest is None:
            line.add_row(Text(f"starting, {plural(self.epochs, 'epoch')}", style="dim"))
            return line
        done = min(1.0, (latest.step - latest.epoch * steps) / steps) if steps else 0.0
        wide = self.console.width >= 100
        how_far = ProgressBar(total=1, completed=done, width=24) if wide else Text(f"{done:3.0%}")
        score = [self._score] if self._score else []
        facts = [f"loss {metric_value('loss', latest.value)}", *score, *self._time_left(latest), *self._speed(latest)]
        line.add_row(Text(self._epoch_of(latest)), how_far, Text("  ".join(facts)))
        for column in line.columns:
            column.no_wrap = True
        return line


def _is_shown(name: str, epoch: dict[str, Metric]) -> bool:
    """Return whether to show a metric: the evaluated loss only where there is no other on the same part."""
    part, _, what = name.partition(" ")
    return part == "train" or what != "loss" or not any(other.startswith(part) and other != name for other in epoch)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
