"""Fills the templates of the board: the list of runs, single runs, comparisons, and plots."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tenfold.board.race import Race, Scaling, race_content
from tenfold.common.files import short_path
from tenfold.common.metric_traits import loss_last
from tenfold.errors import StoreError
from tenfold.experiment import FIELDS, Experiment
from tenfold.prediction.ledger import Ledger
from tenfold.reports.charts import PlotStyles, Style, chart_data, series
from tenfold.reports.comparison import Comparison
from tenfold.reports.exports import to_csv, to_json
from tenfold.reports.formatting import field_value
from tenfold.reports.pages.comparison_page import EVALUATED, comparison_charts, comparison_content, comparison_tables
from tenfold.reports.pages.page import (
    COMPARISON_CHARTS,
    COMPARISON_PARTS,
    RUN_PARTS,
    Curves,
    Lanes,
    describe_figure,
    page_figures,
    render_parts,
    render_template,
)
from tenfold.reports.pages.run_pages import about_curves, common_content, render_report, run_content, sweep_charts
from tenfold.reports.pages.sections import fold_charts, fold_figures, state_note
from tenfold.reports.related_runs import compare_runs
from tenfold.reports.summary import ledger_note, model_quality
from tenfold.runs import Run, Store
from tenfold.runs.events import EpochEnded, FoldChanged, FoldsStarted, Started
from tenfold.runs.open_run import filter_runs
from tenfold.runs.store import CROSSVAL, INVOCATION, SCRIPT, SWEEP, Follower
from tenfold.runs.tables import RunRecord

MOST_RUNS = 64
"""The most runs that are kept in memory; the least recently used one is dropped first."""
PLOT_COLUMNS = 700
"""The approximate width of a plot in pixels."""


class Watched:
    """The measurements of one run so far."""

    def __init__(self, number: int, follower: Follower) -> None:
        self.number = number
        self.lock = threading.Lock()
        self._follower = follower
        self._forget()

    def _forget(self) -> None:
        self.curves, self.lanes = Curves(), Lanes()
        self.cursor = 0
        self.repeated = self._follower.repeated(self.number)

    def update(self) -> None:
        if self._follower.repeated(self.number) != self.repeated:
            self._forget()
        events, self.cursor = self._follower.events(self.number, self.cursor)
        self.curves.add(events)
        self.lanes.add(events)

    @property
    def position(self) -> str:
        """The position that a page sends to get later events: the last event, and the number of discarded events."""
        return f"{self.cursor}.{self.repeated}"

    def since(self, position: str) -> dict[str, Any] | None:
        """Return the updates after a position; "again" means that everything has to be read again."""
        cursor, _, repeated = position.partition(".")
        if repeated != str(self.repeated) or int(cursor) > self.cursor:
            return {"again": True, "position": self.position}
        if int(cursor) == self.cursor:
            return None
        return {
            "curves": self.curves.since(int(cursor), PLOT_COLUMNS),
            "lanes": self.lanes.since(int(cursor)),
            "times": self.lanes.times(),
            "position": self.position,
        }


class Watch:
    """The runs shown on open pages."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self.store = store
        self._follower = follower
        self._lock = threading.Lock()
        self._watched: OrderedDict[int, Watched] = OrderedDict()

    @contextmanager
    def measurements(self, number: int) -> Iterator[Watched]:
        """Yield the current measurements of a run for the duration of the block."""
        with self._lock:
            watched = self._watched.get(number) or self._watched.setdefault(number, Watched(number, self._follower))
            self._watched.move_to_end(number)
            while len(self._watched) > MOST_RUNS:
                self._watched.popitem(last=False)
        with watched.lock:
            watched.update()
            yield watched

    def open(self, number: int) -> Run:
        """Return the run with this number; raises StoreError if there is none."""
        return Run(self.store, self.store.find(number))

    def figure(self, run: Run, **described: Any) -> dict[str, Any]:
        """Return the figure of a run, thinned to the resolution of a plot, and the position to continue from."""
        with self.measurements(run.id) as watched:
            return {
                **describe_figure(run, **described),
                "curves": watched.curves.between(columns=PLOT_COLUMNS),
                "lanes": watched.lanes.between(columns=PLOT_COLUMNS),
                "times": run.times or watched.lanes.times(),
                "position": watched.position,
            }


ALWAYS = ("model", "data", "workers", "strategy", "sync_every", "epochs", "batch_size", "optimizer", "lr", "seed")
"""Fields that are sent for every run; other fields are sent only if they differ from their defaults."""


MOST_POINTS = 40
"""The maximum number of points in a sparkline."""


@dataclass
class Listed:
    """A run, its row, and the version of the list in which the row last changed."""

    run: Run
    row: dict[str, Any]
    version: int


class RunList:
    """The rows of all runs; every change gets a version, and pages request the changes since their version."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self.store = store
        self.follower = follower
        self.version = 0
        self._listed: dict[int, Listed] = {}
        self._removed: list[tuple[int, int]] = []
        self._tokens: dict[int, tuple[Any, ...]] = {}
        self._store_version = -1
        self._lock = threading.Lock()
        self._defaults = _recorded(Experiment().model_dump(mode="json"))

    def update(self) -> None:
        """Read changes in the store and the progress of running runs."""
        with self._lock:
            written = self.follower.version()
            running = [number for number, item in self._listed.items() if item.row["status"] == "running"]
            if written == self._store_version and not running:
                return
            self._store_version = written
            records = {record["id"]: record for record in self.store.runs()}
            changed = [number for number, record in records.items() if self._tokens.get(number) != _token(record)]
            for record in self._read(changed):
                run = Run(self.store, record)
                self._put(run, self._fixed(run))
                self._tokens[run.id] = _token(records[run.id])
            for number in set(running) & set(records) - set(changed):
                self._put(self._listed[number].run, self._listed[number].row)
            for number in set(self._listed) - set(records):
                self.version += 1
                del self._listed[number], self._tokens[number]
                self._removed.append((self.version, number))

    def since(self, version: int) -> dict[str, Any]:
        """Return the rows that changed after a version, the numbers of removed runs, and the current version."""
        with self._lock:
            rows = [entry.row for entry in self._listed.values() if entry.version > version]
            gone = [run for at, run in self._removed if at > version]
            return {"rows": rows, "gone": gone, "version": self.version}

    def select(self, text: str) -> list[int]:
        """Return the numbers of the runs that a filter selects; words without an operator are matched in titles."""
        words = text.replace(" =", "=").replace("= ", "=").split()
        conditions = [word for word in words if any(sign in word for sign in "=<>~")]
        words = [word.lower() for word in words if word not in conditions]
        with self._lock:
            listed = list(self._listed.values())
        chosen = None
        if conditions:
            chosen = {run.id for run in filter_runs([entry.run for entry in listed], " ".join(conditions))}
        return [
            entry.run.id
            for entry in listed
            if (chosen is None or entry.run.id in chosen) and all(word in _text(entry.row) for word in words)
        ]

    def _read(self, changed: list[int]) -> Iterable[RunRecord]:
        """Return the records of runs; all at once if there are many."""
        if len(changed) <= 20:
            return [self.store.find(run) for run in changed]
        wanted = set(changed)
        return (record for record in self.store.records() if record["id"] in wanted)

    def _put(self, run: Run, row: dict[str, Any]) -> None:
        row = row | {"progress": None}
        if run.status == "running":
            row |= {"progress": progress_of(run, self.follower)} | _so_far(self.follower.stages(run.id))
        if run.id not in self._listed or self._listed[run.id].row != row:
            self.version += 1
            self._listed[run.id] = Listed(run, row, self.version)

    def _fixed(self, run: Run) -> dict[str, Any]:
        """Return the cells of a row that do not change while the run is running."""
        recorded = _recorded(run.recorded_fields)
        script = run.kind == SCRIPT  # scripts have their own optimizer, epochs and so on
        always = ("model", "data", "workers") if script else ALWAYS
        fields = {
            name: field_value(value)
            for name, value in recorded.items()
            if name in always or (value != self._defaults.get(name) and value not in (None, {}, []))
        }
        if script:
            fields |= {name: fields[name][1:-1] for name in ("model", "data")}  # its name and its arguments
        score = next(iter(loss_last(run.metrics).items()), (None, None))
        return {
            "id": run.id,
            "title": run.title,
            "kind": run.kind,
            "status": run.status,
            "diverged": bool(run.result.get("diverged")),
            "created": run.created,
            "ended": run.ended,
            "error": run.error.partition("\n")[0][:200],
            "fields": fields,
            "setting": _digest(recorded, run.clock),
            "metric": score[0],
            "score": score[1],
            "loss": run.loss,
            "seconds": run.seconds,
            "clock": run.clock,
            "speed": run.result.get("samples_per_second"),
            "target": run.seconds_to_target,
            "tags": list(run.tags),
            "note": run.note,
            "parent": run.metadata.get("crossval", run.metadata.get("trial", {})).get("parent"),
            "invocation": run.metadata.get(INVOCATION),
            "command": run.metadata.get("command"),
            **({} if run.status == "running" else {"curve": _scores(self.follower.stages(run.id), score[0])}),
        }


def _epochs(stages: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the measurements after each epoch, by part and name."""
    return [row["metrics"] for row in stages if row.get("what") == EpochEnded.KIND and row.get("metrics")]


def _scores(stages: Sequence[dict[str, Any]], metric: str | None) -> list[float]:
    """Return the values of a metric (default: the loss) after each epoch; subsampled if there are many."""
    epochs = _epochs(stages)
    for part in ("validation", "test", "train"):
        values = [epoch[f"{part}_{metric or 'loss'}"] for epoch in epochs if f"{part}_{metric or 'loss'}" in epoch]
        if values:
            return values[:: -(-len(values) // MOST_POINTS)]
    return []


def _so_far(stages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the cells of a running run: score and loss after its last epoch."""
    last = next(iter(reversed(_epochs(stages))), {})
    part = next((part for part in ("validation", "test", "train") if any(name.startswith(part) for name in last)), "")
    metrics = loss_last({name.removeprefix(f"{part}_"): last[name] for name in last if name.startswith(f"{part}_")})
    metric = next(iter(metrics), None)
    score = metrics[metric] if metric is not None else None
    return {"metric": metric, "score": score, "loss": metrics.get("loss"), "curve": _scores(stages, metric)}


def progress_of(run: Run, follower: Follower) -> dict[str, Any]:
    """Return the progress of a running run as a share, and the estimated seconds left."""
    stages, metric = follower.stages(run.id), follower.latest_metric(run.id)
    if run.kind == CROSSVAL:
        return _fold_progress(stages)
    if run.kind == SWEEP:
        done = sum(trial["status"] != "running" for trial in run.store.trials(run.id))
        whole = max(run.metadata["sweep"]["trials"], done)  # more may have been requested since
        left = stages[-1]["at"] / done * (whole - done) if done else None
        return {"share": min(1.0, done / whole), "done": done, "of": whole, "unit": "trial", "left": left, "loss": None}
    epochs = run.experiment.training.epochs if run.readable else 0
    started: dict[str, Any] = next((row for row in reversed(stages) if row.get("what") == Started.KIND), {})
    per_epoch, step = started.get("steps_per_epoch") or 0, metric.get("step") or 0
    whole, before = epochs * per_epoch, started.get("epoch", 0) * per_epoch
    if not whole or not step:
        return {"share": 0.0, "done": 0, "of": epochs, "unit": "epoch", "left": None, "loss": None}
    passed = metric["at"] - started["at"]
    left = passed / (step - before) * (whole - step) if step > before and run.clock == "measured" else None
    progress = {
        "share": min(1.0, step / whole),
        "done": metric["epoch"] + 1,
        "of": epochs,
        "unit": "epoch",
        "left": left,
    }
    return progress | {"loss": metric["value"] if (metric["part"], metric["name"]) == ("train", "loss") else None}


def _fold_progress(stages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole = next((len(row["names"]) for row in stages if row.get("what") == FoldsStarted.KIND), 0)
    ended = [
        row for row in stages if row.get("what") == FoldChanged.KIND and row.get("status") in ("finished", "failed")
    ]
    done = len({row.get("worker") for row in ended})
    left = ended[-1]["at"] / done * (whole - done) if done else None
    return {"share": done / whole if whole else 0.0, "done": done, "of": whole, "unit": "fold", "left": left}


def _text(row: dict[str, Any]) -> str:
    fields = row["fields"]
    shown = [f"{row['id']}", row["title"], row["status"], row["kind"], row["note"], *row["tags"]]
    return " ".join([*shown, *(fields.get(name, "") for name in ("model", "data", "strategy", "optimizer"))]).lower()


def _token(record: RunRecord) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("title", "status", "ended", "tags", "note"))


def _recorded(sections: dict[str, Any]) -> dict[str, Any]:
    """Return recorded fields by their short names."""
    values = {}
    for name, (section, field) in FIELDS.items():
        held = sections.get(section)
        if isinstance(held, dict) and field in held:
            values[name] = held[field]
    return values


def _digest(recorded: dict[str, Any], clock: str) -> str:
    """Return a name for the setting, the same for runs that differ only in the seed."""
    setting = {name: value for name, value in recorded.items() if name != "seed"}
    return hashlib.sha256(json.dumps([setting, clock], sort_keys=True, default=str).encode()).hexdigest()[:12]


MOST_COMPARED = 40
DOWNLOADS: dict[str, tuple[str, str, str, Callable[[Run], str]]] = {
    "csv": ("CSV", "All numbers as csv", "text/csv", lambda run: to_csv([run])),
    "json": ("JSON", "All numbers as json", "application/json", lambda run: to_json([run])),
    "trace.json": (
        *("Trace", "What each worker did when, for Perfetto", "application/json"),
        lambda run: json.dumps(run.trace()),
    ),
    "html": ("Report", "This page as one file", "text/html", lambda run: render_report([run])),
}
"""Downloads by file extension: the button's label, a description, the media type, and the function to create it."""


class Pages:
    """Renders the pages of one folder of runs."""

    def __init__(self, watch: Watch, action_token: str) -> None:
        self.watch = watch
        self.action_token = action_token
        self._scaling = Scaling(watch.store.folder)

    def runs(self) -> str:
        folder = str(short_path(self.watch.store.folder))
        content = {"title": "Runs", "details": [folder], "truth": "Times were measured, unless marked as predicted"}
        predictions = ledger_note(Ledger.load())
        return render_template("board.html", content | {"board": self._board("runs.js"), "predictions": predictions})

    def run(self, number: int) -> str:
        run = self.watch.open(number)
        return render_template("runs.html", self._run_content(run))

    def run_parts(self, number: int) -> dict[str, str]:
        return render_parts("runs.html", self._run_content(self.watch.open(number), whole=False), RUN_PARTS)

    def comparison(self, numbers: Sequence[int]) -> str:
        return render_template("runs.html", self._comparison_content(numbers))

    def comparison_parts(self, numbers: Sequence[int]) -> dict[str, str]:
        """Return the parts of the page of several runs that change while they are running; none if only one is left."""
        left = self._still_there(numbers)
        if len(left) < 2:
            return {}
        comparison = Comparison(left)
        states = {"runs": [{"id": run.id, "status": run.status, "state": state_note(run)} for run in comparison.runs]}
        content = common_content(comparison) | comparison_tables(comparison) | states
        return render_parts("runs.html", content, COMPARISON_PARTS)

    def comparison_charts(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the plots of several runs that change as runs end, and the part of the page that contains them."""
        left = self._still_there(numbers)
        if len(left) < 2:
            raise StoreError("fewer than two of these runs still exist")
        comparison = Comparison(left)
        content = comparison_charts(comparison)
        drawn = page_figures([], comparison.runs, content.pop("charts"), bars=content.pop("bars"))
        parts = render_parts("runs.html", content | {"figures": drawn, "clock": drawn["clock"]}, COMPARISON_CHARTS)
        return {"parts": parts, "plots": drawn["plots"], "bars": drawn["bars"]}

    def versus(self, number: int, other: int) -> str:
        compared = compare_runs(self.watch.open(number), self.watch.open(other))
        return render_parts("runs.html", {"versus": compared, "board": self._board("run.js")}, ("versus",))["versus"]

    def race(self) -> str:
        return render_template("race.html", self._race_content())

    def race_parts(self) -> dict[str, Any]:
        """Return the parts of the race page that change while contestants run, and whether the race is over."""
        content = self._race_content()
        parts = render_parts("race.html", content, ("headline", "race"))
        return {"parts": parts, "plots": content["figures"]["plots"], "over": content["over"]}

    def race_scaling(self, link: str, workers: int) -> dict[str, Any]:
        """Return the predicted speedups on a link, and a sentence about one number of workers."""
        chart, text = self._scaling.curve(Race.load(self.watch.store.folder), link, workers)
        return {"plots": chart_data({"scaling": chart}), "text": text}

    def _race_content(self) -> dict[str, Any]:
        race = Race.load(self.watch.store.folder)
        runs = {
            contestant.run: self.watch.open(contestant.run)
            for contestant in race.contestants
            if contestant.run is not None
        }
        return race_content(race, runs) | {"board": self._board("race.js"), "several": True}

    def after_end(self, number: int) -> dict[str, Any]:
        """Return the sections of a page that appear once the run has ended: its model, and the plots of its folds."""
        run = self.watch.open(number)
        folds = fold_figures(run) if run.kind == CROSSVAL else []
        return {
            "quality": model_quality(run),
            "folds": folds,
            "plots": chart_data(fold_charts(run) | sweep_charts(run)),
        }

    def _run_content(self, run: Run, *, whole: bool = True) -> dict[str, Any]:
        content = common_content(Comparison([run])) | run_content(run, self.watch.figure(run), whole=whole)
        if run.status == "running":  # placeholders for sections that will follow
            folded = run.kind in (CROSSVAL, SWEEP)
            bars = content["figures"]["bars"] or ([] if folded else [{"label": "", "times": {}}])
            content |= {
                "lanes": not folded,
                "quality": True,
                "console": "",
                "figures": content["figures"] | {"bars": bars},
            }
            content["learning"] = about_curves(run) if run.kind != SWEEP else ""
        downloads = [
            {"name": f"tenfold-run-{run.id}.{kind}", "label": label, "about": about, "address": f"/run/{run.id}.{kind}"}
            for kind, (label, about, *_) in DOWNLOADS.items()
        ]
        return content | {"board": self._board("run.js", run=run.id), "downloads": downloads}

    def _still_there(self, numbers: Sequence[int]) -> list[Run]:
        """Return the runs that have not been removed since a page was opened."""
        runs = []
        for number in dict.fromkeys(numbers[:MOST_COMPARED]):
            with suppress(StoreError):
                runs.append(self.watch.open(number))
        return runs

    def _comparison_content(self, numbers: Sequence[int]) -> dict[str, Any]:
        runs = [self.watch.open(number) for number in dict.fromkeys(numbers)]
        if not 1 < len(runs) <= MOST_COMPARED:
            raise StoreError(f"2 to {MOST_COMPARED} runs can be compared, not {len(runs)}")
        comparison = Comparison(runs)
        content = common_content(comparison) | comparison_content(comparison, self._each_figure(comparison))
        if any(run.status == "running" for run in comparison.runs):
            bars = content["figures"]["bars"] or [{"label": "", "times": {}}]
            content |= {"learning": content["learning"] or EVALUATED, "figures": content["figures"] | {"bars": bars}}
        return content | {"board": self._board("compare.js"), "downloads": []}

    def _each_figure(self, comparison: Comparison) -> list[dict[str, Any]]:
        """Return a figure for each run, because running runs are drawn one by one."""
        figures: list[dict[str, Any]] = []
        styles = PlotStyles(comparison.rows)
        for row in comparison.rows:
            for run in row.runs:
                label = row.label if len(row.runs) == 1 else f"{row.label}, run {run.id}"
                style = styles.style(row) if len(row.runs) == 1 else Style(series(len(figures))[0])
                figures.append({**self.watch.figure(run, label=label, style=style), "lanes": None})
        return figures

    def _board(self, script: str, **details: Any) -> dict[str, Any]:
        return {"action_token": self.action_token, "script": script, **details}
