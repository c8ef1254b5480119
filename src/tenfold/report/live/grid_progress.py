"""Progress of a comparison: one line for each run that is done, and a bar for the one that is running."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenfold.common.metric_table import loss_last
from tenfold.experiment import Experiment
from tenfold.report.clocks import training_time
from tenfold.report.formatting import metric_value
from tenfold.report.live.display import Display
from tenfold.report.live.fold_progress import FoldProgress
from tenfold.report.live.run_progress import RunProgress
from tenfold.runs import Event, Run, Warned
from tenfold.runs.console import print_to_runs


@dataclass(frozen=True)
class Turn:
    """One run of a comparison, as it begins and as it is done."""

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
    """Whether another comparison is running it, whose result is waited for."""

    @property
    def begins(self) -> bool:
        """Whether it has only begun."""
        return self.run is None and not self.error and not self.waits


class GridProgress(Display):
    """Shows the progress of a comparison while its `with` block lasts.

    Pass its `watch` and `listen` on to a comparison. On a terminal it draws which run is running, how far that is and
    how long it will take; elsewhere only the lines of finished runs are written.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self._label = ""
        self._running: Display | None = None

    def start_run(self, label: str, experiment: Experiment) -> None:
        """Show this run as the running one."""
        self._label = label
        if experiment.division.folds is None:
            self._running = _RunBar(experiment, console=self.console)
        else:
            self._running = _FoldBars(console=self.console)

    def watch(self, turn: Turn) -> None:
        """Show which run is running, and write a line for each that is done."""
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
        """Write the line of a run that is done."""
        self._running = None
        self._say(line, style="red" if failed else "")

    def listen(self, event: Event) -> None:
        """Update the bar of the running run by one of its events."""
        if isinstance(event, Warned):
            self._warn(event)
        elif self._running is not None:
            self._running.listen(event)

    def drawing(self) -> Table:
        """Draw the progress of the running run."""
        drawn = Table.grid()
        if self._running is not None:
            drawn.add_row(Text(self._label, style="dim", no_wrap=True, overflow="ellipsis"))
            drawn.add_row(self._running.drawing())
        return drawn


class _WithoutLines(Display):
    """A display whose lines go only to the console of the run."""

    def _say(self, line: str, style: str = "") -> None:  # noqa: ARG002
        print_to_runs(f"{line}\n")


class _RunBar(_WithoutLines, RunProgress):
    """The bar of a run."""


class _FoldBars(_WithoutLines, FoldProgress):
    """The bars of a cross-validation."""
