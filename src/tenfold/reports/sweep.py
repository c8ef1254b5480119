"""A recorded sweep: its trials with their values and results, the best one, and plots."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tenfold.common.files import json_text
from tenfold.errors import StoreError
from tenfold.experiment import FIELDS, Experiment
from tenfold.reports import charts
from tenfold.reports.differences import describe_settings
from tenfold.reports.exports import Result
from tenfold.reports.formatting import NOTHING, duration, field_value, metric_scale, metric_value, one_line, plural
from tenfold.reports.tables import TextTable
from tenfold.runs import Run
from tenfold.runs.callbacks import BEHIND
from tenfold.runs.run import as_asked
from tenfold.runs.store import SWEEP
from tenfold.runs.tables import RunRecord

TIMES = ("seconds", "seconds_to_target")
"""Possible goals of a sweep besides metrics."""
SHOWN_TRIALS = 15
"""The maximum number of trials that a terminal shows, the best ones."""
FEWEST_FOR_IMPORTANCE = 6
"""With fewer trials, their differences say little about which field matters."""


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep."""

    number: int
    run: int
    status: str
    """finished, pruned, failed, interrupted or running."""
    values: dict[str, Any]
    """The fields that the sweep varies, with Python objects replaced by their names."""
    value: float | None
    """The trial's value for the goal; None if it has not been measured yet."""
    curve: list[float]
    """The metric after each epoch; empty if the goal is a time."""
    epochs: int | None
    seconds: float | None
    error: str
    diverged: bool

    @classmethod
    def of(cls, record: RunRecord) -> "Trial":
        place, result = record["metadata"]["trial"], record["result"]
        scored = result.get("trial", {"value": None, "curve": []})
        pruned = record["status"] == "finished" and result.get("stopped_by") == BEHIND
        return cls(
            place["number"],
            record["id"],
            "pruned" if pruned else record["status"],
            place["values"],
            scored["value"],
            scored["curve"],
            result.get("epochs"),
            result.get("seconds"),
            record["error"].partition("\n")[0],
            bool(result.get("diverged")),
        )

    @property
    def label(self) -> str:
        return describe_settings(self.values)


class Sweep(Result):
    """A recorded sweep: its trials, the best of them, and the experiment that trains with the best values."""

    words = 0

    def __init__(self, run: Run) -> None:
        """Wrap the run of a sweep, as `tenfold.open_run` returns it."""
        if run.kind != SWEEP:
            raise StoreError(f"run {run.id} is not a sweep; `tenfold sweep` records one")
        self.run = run
        details = run.metadata.get("sweep")
        if details is None or not set(details["space"]) <= set(FIELDS):
            raise StoreError(f"the sweep recorded in run {run.id} is damaged, or from another version")
        self.objective: str = details["objective"]
        """A metric, "seconds" or "seconds_to_target"."""
        self.lower_is_better: bool = details["lower"]
        self.part: str = details["part"]
        """The part on which the metric is measured: validation, or test if there is no validation part."""
        self.space: dict[str, str] = details["space"]
        """The fields that vary, with their ranges or values as text."""

    @cached_property
    def trials(self) -> list[Trial]:
        """All trials so far, in the order in which they began."""
        records = self.run.store.trials(self.run.id)
        whole = [Trial.of(record) for record in records if "trial" in record["metadata"]]
        return sorted(whole, key=lambda trial: trial.number)

    @property
    def ranked(self) -> list[Trial]:
        """The trials, the best first; pruned, failed and interrupted trials come last."""
        sign = 1 if self.lower_is_better else -1

        def key(trial: Trial) -> tuple[bool, float, int]:
            worst = trial.value is None or math.isnan(trial.value)
            return trial.status != "finished", math.inf if worst else sign * (trial.value or 0.0), trial.number

        return sorted(self.trials, key=key)

    @property
    def best(self) -> Trial:
        """The best of the finished trials; raises StoreError if there is none."""
        first = next(iter(self.ranked), None)
        if first is None or first.status != "finished" or first.value is None:
            raise StoreError(f"sweep {self.run.id} has no finished trial with a value of {self.objective} yet")
        return first

    @property
    def best_run(self) -> Run:
        return self.run.other(self.best.run)

    @property
    def best_experiment(self) -> Experiment:
        """The experiment of the best trial, to train with its values; Python objects are taken from the run."""
        best = self.best_run
        flat = as_asked(best.experiment, best.metadata).flat()
        return self.run.experiment.replace(**{name: flat[name] for name in self.space})

    @property
    def importance(self) -> dict[str, float]:
        """The share of the differences between trials that each field explains; empty if there are too few trials."""
        return dict(self.run.result.get("sweep", {}).get("importance", {}))

    @property
    def heading(self) -> str:
        if self.objective in TIMES:
            return self.objective.replace("_", " ")
        return f"{self.part} {one_line(self.objective)}"

    def written(self, value: float | None) -> str:
        return duration(value) if self.objective in TIMES else metric_value(self.objective, value)

    def text_table(self, most: int | None = None) -> TextTable:
        """Return the trials as a table, the best first."""
        rows = [
            [
                str(trial.number),
                str(trial.run),
                *(field_value(trial.values.get(name)) for name in self.space),
                self.written(trial.value),
                NOTHING if trial.epochs is None else str(trial.epochs),
                duration(trial.seconds),
                trial.status,
            ]
            for trial in self.ranked[:most]
        ]
        return TextTable(["trial", "run", *self.space, self.heading, "epochs", "training", "state"], rows)

    def shown_table(self) -> TextTable:
        return self.text_table(SHOWN_TRIALS)

    def lines(self) -> list[str]:
        """Return conclusions from the trials, in sentences: the best one, which fields matter, and others."""
        first, *rest = self.remarks()
        more = len(self.trials) - SHOWN_TRIALS
        hidden = [f"{plural(more, 'more trial')} not shown; --format csv has all"] if more > 0 else []
        shares = sorted(self.importance.items(), key=lambda pair: -pair[1])
        conclusions = ["importance: " + ", ".join(f"{name} {share:.0%}" for name, share in shares)] if shares else []
        with suppress(StoreError):
            best = self.best
            written = f"{best.label}: {self.heading} {self.written(best.value)}"
            conclusions.append(f"best: trial {best.number} (run {best.run}), {written}")
        return [*hidden, first, *conclusions, *rest]

    def remarks(self) -> list[str]:
        """Return sentences on the outcomes of the trials, the reliability of the best one, and how to use it."""
        counts = Counter(trial.status for trial in self.trials)
        states = ("finished", "pruned", "failed", "interrupted", "running")
        lines = [", ".join(f"{counts[state]} {state}" for state in states if counts[state])]
        if self.part == "test" and self.objective not in TIMES:
            lines.append("chosen on the test part, so its value there is too optimistic; set validation_fraction = 0.1")
        failed = [f"trial {trial.number} failed: {one_line(trial.error)}" for trial in self.trials if trial.error]
        lines += failed[:3] + ([f"{len(failed) - 3} more failed"] if len(failed) > 3 else [])
        try:
            best = self.best
        except StoreError as error:
            return [*lines, str(error)]
        return [*lines, f"`tenfold train --from-sweep {self.run.id}` trains with the values of trial {best.number}"]

    def records(self) -> list[dict[str, Any]]:
        """Return the trials as flat dictionaries, in the order in which they began."""
        shown = [asdict(trial) for trial in self.trials]
        return [
            trial.pop("values") | trial | {"curve": " ".join(f"{item:g}" for item in trial["curve"])} for trial in shown
        ]

    def to_json(self) -> str:
        """Return the sweep as JSON: its trials, the best one, and notes."""
        try:
            best: int | None = self.best.number
        except StoreError:
            best = None
        about = {"run": self.run.id, "status": self.run.status, "importance": self.importance, "best": best}
        return (
            json_text(
                {**self.run.metadata["sweep"], **about, "trials": [asdict(trial) for trial in self.trials]}, indent=2
            )
            + "\n"
        )

    def report(self, path: str | Path = "report.html") -> Path:
        return self.run.report(path)

    def __repr__(self) -> str:
        return f"<Sweep {self.run.id}: {plural(len(self.trials), 'trial')}>"


def measure_importance(trials: Sequence[Trial], fields: Sequence[str]) -> dict[str, float]:
    """Return the share of the differences between finished trials that each field explains; empty if there are few.

    A forest of regression trees predicts the objective from the fields; the importance of a field is the share of the
    variance that its splits remove (Breiman 2001).
    """
    scored = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
    if len(scored) < FEWEST_FOR_IMPORTANCE or len(fields) < 2:
        return {}
    from sklearn.ensemble import RandomForestRegressor

    columns = [_as_numbers([trial.values.get(name) for trial in scored]) for name in fields]
    forest = RandomForestRegressor(n_estimators=100, random_state=0, n_jobs=1)
    forest.fit(list(zip(*columns, strict=True)), [trial.value for trial in scored])
    return dict(zip(fields, map(float, forest.feature_importances_), strict=True))


FEWEST = 2
"""With fewer trials there is nothing to plot."""


def sweep_plots(sweep: Sweep) -> dict[str, charts.Chart]:
    """Return the plots by name; none for a sweep without trials to compare."""
    scored = [trial for trial in sweep.trials if trial.value is not None and trial.status in ("finished", "pruned")]
    if len(scored) < FEWEST:
        return {}
    drawn: dict[str, charts.Chart] = {"history": _history(sweep, scored), "parallel": _parallel(sweep, scored)}
    if sweep.importance:
        drawn["importance"] = _importance(sweep)
    return drawn


def _history(sweep: Sweep, scored: Sequence[Trial]) -> charts.LineChart:
    """Return the value of each trial, and the best so far."""
    scale, unit = (1, " s") if sweep.objective in TIMES else metric_scale(sweep.objective)
    better: Callable[..., float] = min if sweep.lower_is_better else max

    def points(status: str, label: str, color: str) -> charts.ChartLine:
        placed = [
            charts.ChartPoint(
                trial.number,
                scale * (trial.value or 0.0),
                f"trial {trial.number}: {trial.label}, {sweep.written(trial.value)}",
            )
            for trial in scored
            if trial.status == status
        ]
        return charts.ChartLine.of(label, placed, color=color, joined=False)

    finished = [trial for trial in scored if trial.status == "finished"]
    best: list[float] = []
    for trial in finished:
        best.append(better([*best[-1:], scale * (trial.value or 0.0)]))
    lines = [charts.ChartLine(label="best so far", x=[trial.number for trial in finished], y=best, reference=True)]
    lines.append(points("finished", "finished", charts.BLUE))
    if any(trial.status == "pruned" for trial in scored):
        lines.append(points("pruned", "pruned", charts.LAVENDER))
    title = f"{sweep.heading}{f' ({unit.strip()})' if unit else ''}"
    return charts.LineChart(title=title, x_label="trial", lines=lines, unit=unit)


def _parallel(sweep: Sweep, scored: Sequence[Trial]) -> charts.ParallelChart:
    """Return a line for each trial across an axis for each field, and one for its value."""
    columns = {name: [trial.values.get(name) for trial in scored] for name in sweep.space}
    places = {name: _places(values, log=sweep.space[name].endswith(":log")) for name, values in columns.items()}
    axes = [charts.ParallelAxis(name=one_line(name), ticks=_ticks(columns[name], places[name])) for name in sweep.space]
    values = [trial.value or 0.0 for trial in scored]
    last = _places(values, log=False)
    ends = {min(values): min(last), max(values): max(last)}
    axes.append(
        charts.ParallelAxis(name=sweep.heading, ticks=[(at, sweep.written(value)) for value, at in ends.items()])
    )
    order = sorted(values, reverse=sweep.lower_is_better)
    lines = [
        charts.ParallelLine(
            places=[*(places[name][at] for name in sweep.space), last[at]],
            rank=order.index(values[at]) / max(1, len(values) - 1),
            faint=trial.status == "pruned",
            note=f"trial {trial.number} (run {trial.run}): {trial.label}, {sweep.heading} {sweep.written(trial.value)}",
        )
        for at, trial in enumerate(scored)
    ]
    return charts.ParallelChart(
        title="values of each trial", axes=axes, lines=sorted(lines, key=lambda line: line.rank)
    )


def _as_numbers(values: Sequence[Any], *, log: bool = False) -> list[float]:
    """Return numbers as they are, or their logarithms; other values by their alphabetical position."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [math.log(value) if log else float(value) for value in values]
    names = sorted(set(map(str, values)))
    return [float(names.index(str(value))) for value in values]


def _places(values: Sequence[Any], *, log: bool) -> list[float]:
    """Return the positions of values on an axis from 0 to 1."""
    numbers = _as_numbers(values, log=log)
    low, high = min(numbers), max(numbers)
    return [(number - low) / (high - low) if high > low else 0.5 for number in numbers]


def _ticks(values: Sequence[Any], places: Sequence[float]) -> list[tuple[float, str]]:
    """Return the tick labels of an axis: all values if there are few, or only both ends."""
    ticks = dict(sorted(zip(places, map(field_value, values), strict=True)))
    return list(ticks.items()) if len(ticks) <= 5 else [min(ticks.items()), max(ticks.items())]


def _importance(sweep: Sweep) -> charts.BarTable:
    shares = sorted(sweep.importance.items(), key=lambda pair: -pair[1])
    bars = {name: charts.BarPart(series=0, begin=0.0, end=share, text=f"{share:.0%}") for name, share in shares}
    return charts.BarTable(
        title="importance of each field",
        measures=[""],
        zeros=[0.0],
        series=[("importance", charts.OLIVE)],
        rows=[(name, [[bar]]) for name, bar in bars.items()],
    )
