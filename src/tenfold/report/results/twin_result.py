"""A real run and its virtual twin: whether the weights are the same, and how far off the predicted times were."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.json_values import json_text
from tenfold.report import clocks
from tenfold.report.formatting import NOTHING, duration, interval
from tenfold.report.summary import KIND_NAMES
from tenfold.report.tables.text_table import TextTable
from tenfold.runs import Run

if TYPE_CHECKING:
    from rich.console import Group

SPANS: dict[str, tuple[str, ...]] = {
    "data and computing": ("data", "copy", "compute"),
    **{KIND_NAMES[kind]: (kind,) for kind in ("wait", "communicate", "evaluate", "save", "start")},
}
"""The rows of the table, and the kinds of time that each adds up."""
TOTAL, TO_TARGET = "training, total", "training to target"


@dataclass(frozen=True)
class TimePart:
    """A part of the time, measured and predicted."""

    name: str
    measured: float | None
    predicted: float | None

    @property
    def error(self) -> float | None:
        """The relative error, (predicted - measured) / measured; negative where the prediction is too short."""
        if not self.measured or self.predicted is None:
            return None
        return (self.predicted - self.measured) / self.measured


class Twin:
    """One experiment run for real and on a virtual cluster: as a table, JSON, a trace and an HTML report."""

    def __init__(self, real: Run, virtual: Run, difference: float) -> None:
        self.real = real
        self.virtual = virtual
        self.difference = difference
        """The largest difference between the weights; 0.0 means the same bits."""

    @property
    def parts(self) -> list[TimePart]:
        """The mean time over the workers by kind, then the training time of the slowest worker."""
        both, found = (self.real, self.virtual), []
        for name, kinds in SPANS.items():
            spans = [[run.times[kind] for kind in kinds if kind in run.times] for run in both]
            if any(spans):
                found.append(TimePart(name, *(sum(seconds) if seconds else None for seconds in spans)))
        reached = [run.seconds_to_target for run in both]
        if any(seconds is not None for seconds in reached):
            found.append(TimePart(TO_TARGET, *reached))
        return [*found, TimePart(TOTAL, self.real.seconds, self.virtual.seconds)]

    @property
    def error(self) -> float | None:
        """The relative error of the predicted training time."""
        return self.parts[-1].error

    @property
    def same_weights(self) -> bool:
        """Whether both ended with the same weights, bit for bit."""
        return self.difference == 0.0

    def table(self) -> TextTable:
        """Return the parts of the time, measured and predicted, and the signed error in percent."""
        rows = [
            [one.name, duration(one.measured), duration(one.predicted), signed_percent(one.error)] for one in self.parts
        ]
        if self.virtual.interval and self.virtual.seconds is not None:
            rows[-1][2] += f" {interval(*self.virtual.interval, self.virtual.seconds)}"
        return TextTable(["time", "measured", "predicted", "error"], rows, totals=1)

    def weights(self) -> str:
        """Return the largest difference between the weights as text."""
        return "0.0, bit for bit the same" if self.same_weights else f"{self.difference:.3g}, not the same"

    def notes(self) -> list[str]:
        """Return the lines that explain the table."""
        notes = ["rows: mean over the workers; total: the slowest worker; error = (predicted - measured) / measured"]
        notes += self._target_notes()
        notes += clocks.speed_notes([self.virtual.result.get("machine_speed", 1.0)])
        notes.append("startup: reading the data is included in the measured time, not in the predicted one")
        interval, seconds = self.virtual.interval, self.real.seconds
        if interval and seconds is not None:
            inside = interval[0] <= seconds <= interval[1]
            notes.append(f"{clocks.INTERVAL}; the measured time is {'inside' if inside else 'outside'}")
        return [*notes, clocks.UNCALIBRATED] if clocks.is_uncalibrated(self.virtual) else notes

    def _target_notes(self) -> list[str]:
        target = self.real.experiment.training.target
        if target is None:
            return []
        reached = self.real.seconds_to_target is not None
        what = f"target {target:g}"
        return [f"training to target: until {what}" if reached else f"{what} was not reached; all epochs were trained"]

    def record(self) -> dict[str, Any]:
        """Return everything as one dictionary of numbers and text."""
        return {
            "real": self.real.id,
            "virtual": self.virtual.id,
            "weights_largest_difference": self.difference,
            "parts": [asdict(one) | {"error": one.error} for one in self.parts],
            "interval": self.virtual.interval,
            "target": self.real.experiment.training.target,
        }

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json_text(self.record(), indent=2) + "\n"

    def trace(self) -> dict[str, Any]:
        """Return a trace for Perfetto and chrome://tracing, with two processes: measured and predicted."""
        real, virtual = self.real.trace(), self.virtual.trace()
        return real | {"traceEvents": real["traceEvents"] + virtual["traceEvents"]}

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and both timelines, and return its path."""
        from tenfold.report.pages.page import save_page
        from tenfold.report.pages.twin_page import render_twin

        return save_page(render_twin(self), path)

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        weights = Text(self.weights(), style="bold" if self.same_weights else "bold red")
        head = Text.assemble(
            "largest difference between the weights  ", weights, f"  (runs {self.real.id} and {self.virtual.id})"
        )
        return Group(head, Text(), self.table().to_rich(), Text(), *(Text(note, style="dim") for note in self.notes()))

    def __str__(self) -> str:
        from tenfold.report.live.display import as_plain_text

        return as_plain_text(self, 120)

    def __repr__(self) -> str:
        both = f"{self.real.id} and {self.virtual.id}"
        error = signed_percent(self.error)
        return f"<Twin of runs {both}: weights differ by {self.difference:.3g}, predicted time by {error}>"


def signed_percent(error: float | None) -> str:
    """Return a signed error in percent."""
    return NOTHING if error is None else f"{error:+,.{0 if abs(error) >= 10 else 1}%}"
