"""Progress of a cross-validation: a bar for each fold in training, and a line for each that is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tenfold.report import clocks
from tenfold.report.formatting import duration, metric_value, one_line, plural
from tenfold.report.live.display import Display
from tenfold.runs import Event, FoldChanged, FoldsStarted, Metric, Warned

BAR = 24


@dataclass
class _Fold:
    name: str
    status: str = "waiting"
    steps_per_epoch: int = 0
    step: int = 0
    loss: float | None = None
    measured: dict[str, float] = field(default_factory=dict)


class FoldProgress(Display):
    """A listener that shows a cross-validation's progress while its `with` block lasts.

    Every fold that is done leaves a line; on a terminal, bars below show the progress of those in training. It writes
    to standard error unless it is given a console.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self.epochs = 1
        self._folds: list[_Fold] = []

    def listen(self, event: Event) -> None:
        """Update what is shown by an event."""
        if isinstance(event, Metric) and event.fold_index < len(self._folds):
            self._measured(self._folds[event.fold_index], event)
        elif isinstance(event, FoldsStarted):
            self._begin(event)
        elif isinstance(event, FoldChanged):
            self._entered(self._folds[event.fold_index], event)
        elif isinstance(event, Warned):
            self._warn(event)

    def _begin(self, event: FoldsStarted) -> None:
        self.epochs = event.epochs
        self._folds = [_Fold(name) for name in event.names]
        self._say(f"{event.stage}: {plural(len(self._folds), 'fold')}, {event.mode.replace('-', ' ')}", style="dim")

    def _entered(self, fold: _Fold, event: FoldChanged) -> None:
        fold.status = event.status
        fold.steps_per_epoch = event.steps_per_epoch or fold.steps_per_epoch
        if fold.status == "failed":
            self._say(f"{fold.name}  failed: {one_line(event.error)}", style="red")
        elif fold.status == "finished":
            scores = _scores(event.metrics)
            seconds = f"{duration(event.seconds)} {clocks.MEASURED}"
            self._say("  ".join([fold.name, *(f"validation {one}" for one in scores), seconds]))

    def _measured(self, fold: _Fold, metric: Metric) -> None:
        fold.step = max(fold.step, metric.step)
        if metric.part == "validation":
            fold.measured[metric.name] = metric.value
        elif metric.name == "loss":
            fold.loss = metric.value

    def drawing(self) -> Table:
        """Draw the progress of the folds."""
        drawn = Table.grid(padding=(0, 2, 0, 0))
        for fold in self._folds:
            if fold.status in ("started", "resumed"):
                steps = fold.steps_per_epoch * self.epochs
                bar = ProgressBar(total=1, completed=min(1.0, fold.step / steps) if steps else 0.0, width=BAR)
                epoch = min(fold.step // (fold.steps_per_epoch or 1) + 1, self.epochs)
                loss = [f"loss {metric_value('loss', fold.loss)}"] if fold.loss is not None else []
                facts = [f"epoch {epoch}/{self.epochs}", *loss, *_scores(fold.measured)]
                drawn.add_row(Text(fold.name), bar, Text("  ".join(facts)))
        done = sum(fold.status in ("finished", "failed") for fold in self._folds)
        summary = f"{done} of {plural(len(self._folds), 'fold')} done" if self._folds else "starting"
        drawn.add_row(Text(summary, style="dim"), Text(), Text())
        for column in drawn.columns:
            column.no_wrap = True
        return drawn


def _scores(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics as text; the loss only where there is no other."""
    names = [name for name in metrics if name != "loss"] or list(metrics)
    return [f"{one_line(name)} {metric_value(name, metrics[name])}" for name in names]
