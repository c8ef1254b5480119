"""A race: contestants train one after another to the same accuracy, each with a predicted finish set before."""

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tenfold.api.simulate import LoadedData, forecast_grid
from tenfold.common.files import json_text, read_regular, write_atomically
from tenfold.common.imports import Origin
from tenfold.errors import ExperimentError, StoreError
from tenfold.experiment import Experiment
from tenfold.machine.metadata import using_profile
from tenfold.reports import summary
from tenfold.reports.charts import SERIES, Chart, ChartLine, ChartPoint, LineChart, chart_data
from tenfold.reports.comparison_rows import DOUBTS, load_doubts_of
from tenfold.reports.forecast import signed_percent
from tenfold.reports.formatting import NOTHING, duration, interval, metric_value, plural, ratio
from tenfold.reports.pages.page import page_figures, render_template
from tenfold.reports.tables import DOUBT
from tenfold.runs import Run

FILE = "race.json"
PROFILE = "demo-profile.toml"
"""The profile for all predictions of a race; it is kept separate because it is measured only briefly."""
LINKS = {"100gbe": "100 Gbit/s", "25gbe": "25 Gbit/s", "10gbe": "10 Gbit/s", "1gbe": "1 Gbit/s"}
"""Links between machines like this one, and their names on pages."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
FLAG = "F"
"""The marker of a predicted finish."""


@dataclass(kw_only=True)
class Contestant:
    """One side of a race."""

    name: str
    about: str
    """A description: program, optimizer, workers, threads and epochs."""
    seconds: float
    """Its predicted training time."""
    interval: tuple[float, float]
    """The range in which most runs should fall: see `summary.INTERVAL`."""
    run: int | None = None
    """The number of its run; None before it has started."""


@dataclass(kw_only=True)
class Race:
    """The contestants and their task."""

    title: str
    task: str
    """Model and data in words."""
    machine: str
    target: float | None
    """The test accuracy to reach; None for the end of training."""
    contestants: list[Contestant]
    experiment: dict[str, Any] = field(default_factory=dict)
    """The experiment for the curve of predicted speedups."""

    def save(self, runs: Path) -> None:
        write_atomically(runs / FILE, json_text(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, runs: Path) -> "Race":
        """Return the race of a folder of runs; raises StoreError if there is none."""
        if not (runs / FILE).exists():
            raise StoreError("no race was recorded here; `tenfold demo` runs one")
        try:
            return TypeAdapter(cls).validate_json(read_regular(runs / FILE))
        except ValidationError:
            raise StoreError(f"{runs / FILE} is damaged; `tenfold demo` writes a new one") from None

    def has_finished(self, run: Run) -> bool:
        """Return whether a run has ended and reached the target accuracy."""
        return run.status == "finished" and (self.target is None or (run.accuracy or 0.0) >= self.target)

    def is_over(self, runs: dict[int, Run]) -> bool:
        """Return whether the race is over: all runs have ended, or one failed, after which no other starts."""
        ended = [run.status for run in runs.values() if run.status != "running"]
        return len(ended) == len(self.contestants) or any(status != "finished" for status in ended)

    def verdict(self, runs: dict[int, Run]) -> str:
        """Return a sentence on the winner and its speedup over each other contestant that reached the target."""
        winner = self.winner(runs)
        if winner is None:
            return self.nobody
        names = {contestant.run: contestant.name for contestant in self.contestants}
        others = [run for run in runs.values() if run.id != winner.id and self.has_finished(run)]
        faster = [
            f"{ratio((run.seconds or 0.0) / winner.seconds)} times as fast as {names[run.id]}"
            for run in others
            if winner.seconds
        ]
        doubt = ", unreliable as other programs were running" if load_doubts_of([winner, *others]) else ""
        return f"{names[winner.id]} finished first" + (f": {' and '.join(faster)}, measured{doubt}" if faster else "")

    @property
    def nobody(self) -> str:
        goal = f"{self.target:.0%} test accuracy" if self.target else "the end of training"
        return f"Nobody reached {goal}, so nobody has won"

    def winner(self, runs: dict[int, Run]) -> Run | None:
        """Return the fastest run that has finished once the race is over; None before that."""
        if not self.is_over(runs):
            return None
        done = [run for run in runs.values() if self.has_finished(run)]
        return min(done, key=lambda run: run.seconds or 0.0, default=None)


def race_content(race: Race, runs: dict[int, Run]) -> dict[str, Any]:
    return {
        "title": race.title,
        "details": [race.task, race.machine],
        "race": race,
        "winner": race.winner(runs),
        "over": race.is_over(runs),
        "table": _table(race, runs),
        "finish": f"{race.target:.0%} test accuracy" if race.target else "the end of training",
        "rules": (
            "Each trains for a fixed number of epochs, enough to reach it, and finishes when they are over."
            if race.target
            else "Each finishes when its epochs are over."
        ),
        "interval": summary.INTERVAL,
        "links": LINKS,
        "doubts": [f"{DOUBT} {DOUBTS['load']}"] if load_doubts_of(list(runs.values())) else [],
        "truth": "Times were measured, unless marked as predicted",
        "figures": page_figures([], list(runs.values()), {"race": _race_chart(race, runs)}),
    }


def _table(race: Race, runs: dict[int, Run]) -> dict[str, Any]:
    """Return a row for each contestant: predicted and measured side by side, and its baseline."""
    columns = ["", "what it is", "predicted", "measured", "prediction off by", "test accuracy"]
    names = [contestant.name for contestant in race.contestants]
    columns += [f"times {name}" for name in names[:-1]]
    done = {contestant.name: runs[contestant.run] for contestant in race.contestants if contestant.run in runs}
    rows = []
    for at, item in enumerate(race.contestants):
        run = done.get(item.name)
        seconds = run.seconds if run is not None and run.status == "finished" else None
        off = NOTHING if seconds is None else signed_percent(item.seconds / seconds - 1)
        accuracy = metric_value("accuracy", run.accuracy if run is not None and seconds is not None else None)
        missed = "" if run is None or seconds is None or race.has_finished(run) else ", below the target"
        cells = [item.name, item.about, f"{duration(item.seconds)} {interval(*item.interval, item.seconds)}"]
        cells += [_state(run), off, accuracy + missed]
        for other in names[:-1]:
            slower = done.get(other) if other in names[:at] else None
            pair = [side for side in (run, slower) if side is not None and race.has_finished(side)]
            if len(pair) < 2 or not seconds:  # a speedup is shown only if both reached the target accuracy
                cells.append("")
            else:
                cells.append(ratio((pair[1].seconds or 0.0) / seconds) + (f" {DOUBT}" if load_doubts_of(pair) else ""))
        rows.append((SERIES[at], cells, bool(load_doubts_of([run] if run is not None else []))))
    return {"columns": [(name, at < 2) for at, name in enumerate(columns)], "rows": rows, "optional": ()}


def _state(run: Run | None) -> str:
    if run is None:
        return "waiting"
    return duration(run.seconds) if run.status == "finished" else run.status


def _race_chart(race: Race, runs: dict[int, Run]) -> Chart:
    finish = 100 * race.target if race.target else 100.0
    lines = []
    for at, item in enumerate(race.contestants):
        points = [
            ChartPoint(seconds, 100 * accuracy, f"{item.name}: {accuracy:.2%} after {duration(seconds)}, measured")
            for seconds, accuracy in (_accuracies(runs[item.run]) if item.run in runs else [])
        ]
        ended = item.run in runs and race.has_finished(runs[item.run])
        lines.append(ChartLine.of(item.name, points, color=SERIES[at], rings=[len(points) - 1] if ended else []))
        note = (
            f"{item.name}: predicted to finish after {duration(item.seconds)} {interval(*item.interval, item.seconds)}"
        )
        flag = [ChartPoint(item.seconds, finish, note)]
        lines.append(ChartLine.of(item.name, flag, color=SERIES[at], joined=False, fill="none", markers=[FLAG]))
    return LineChart(
        title="Test accuracy",
        unit="%",
        x_label="training time (s), without startup and evaluation",
        lines=lines,
        y_range=(90.0 if race.target and race.target > 0.95 else None, 100.0),
        target=finish if race.target else None,
        keys=[(FLAG, "predicted finish, set before the start")],
        from_zero=True,
    )


def _accuracies(run: Run) -> list[tuple[float, float]]:
    measured = {point.step: point for point in run.measurements() if (point.part, point.name) == ("test", "accuracy")}
    return [(point.seconds, point.value) for point in measured.values()]


class Scaling:
    """Predicts a race's experiment with other numbers of workers and links, by the clock alone; nothing is trained."""

    def __init__(self, runs: Path) -> None:
        """Predict from the profile beside the runs of the race."""
        self._profile = runs / PROFILE
        self._loaded = LoadedData()
        self._seconds: dict[tuple[str, str, int], float] = {}
        self._lock = threading.Lock()

    def seconds(self, race: Race, link: str, workers: int) -> float:
        key = (json_text(race.experiment), link, workers)
        with self._lock:
            if key not in self._seconds:
                recorded = Experiment.recorded(race.experiment, Origin(FILE)).with_trusted_imports()
                base = recorded.replace(engine="virtual", link=link)
                with using_profile(self._profile):
                    forecast = forecast_grid(base, {"workers": [workers]}, self._loaded)
                self._seconds[key] = forecast.forecasts[0].prediction.seconds
            return self._seconds[key]

    def curve(self, race: Race, link: str, workers: int) -> tuple[LineChart, str]:
        """Return the predicted speedups on a link, with a ring at one number of workers, and a sentence about it."""
        if link not in LINKS or not 1 <= workers <= COUNTS[-1]:
            raise ExperimentError(f"expected a link ({', '.join(LINKS)}) and 1 to {COUNTS[-1]} workers")
        counts = sorted({*COUNTS, workers})
        alone = self.seconds(race, link, 1)
        times = [self.seconds(race, link, count) for count in counts]
        speedups = [alone / seconds for seconds in times]
        line = _speedup_line(LINKS[link], counts, speedups, SERIES[0], [counts.index(workers)])
        here = times[counts.index(workers)]
        text = (
            f"{plural(workers, 'worker')}, {LINKS[link]}: {duration(here)} predicted"
            + f", {ratio(alone / here)} times as fast as one worker ({duration(alone)} predicted)" * (workers > 1)
        )
        return _scaling_chart([line]), text


def _speedup_line(
    label: str, counts: Sequence[int], speedups: Sequence[float], color: str, rings: Sequence[int] = ()
) -> ChartLine:
    points = [
        ChartPoint(count, value, f"{plural(count, 'worker')}, {label}: {ratio(value)} times one worker, predicted")
        for count, value in zip(counts, speedups, strict=True)
    ]
    return ChartLine.of(label, points, color=color, fill="none", rings=rings)


def _scaling_chart(lines: Sequence[ChartLine]) -> LineChart:
    ideal = ChartLine(label="ideal", x=COUNTS, y=COUNTS, dash=(4, 4), reference=True)
    return LineChart(
        title="Speedup over one worker, predicted",
        x_label="workers, each a machine like this one",
        lines=[*lines, ideal],
        x_log=2,
        y_log=2,
        x_ticks=COUNTS,
        y_range=(1.0, float(COUNTS[-1])),
    )


def render_race(race: Race, runs: dict[int, Run], folder: Path) -> str:
    """Return the page of a race that is over, as one self-contained file; `folder` is the folder of its runs."""
    content = race_content(race, runs)
    scaling, lines = Scaling(folder), []
    for at, (link, name) in enumerate(LINKS.items()):
        times = [scaling.seconds(race, link, count) for count in COUNTS]
        lines.append(_speedup_line(name, COUNTS, [times[0] / seconds for seconds in times], SERIES[at]))
    content["figures"]["plots"] |= chart_data({"scaling": _scaling_chart(lines)})
    return render_template("race.html", content)
