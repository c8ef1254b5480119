"""`Run`: a recorded run with its results, metrics, model and history."""

import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tenfold.common import PARTS
from tenfold.common.imports import Origin, resolve
from tenfold.errors import ExperimentError, StoreError
from tenfold.experiment import Experiment
from tenfold.runs import checkpoint
from tenfold.runs.events import Event, Lifecycle, Metric, Span
from tenfold.runs.recorder import chrome_trace, read_console
from tenfold.runs.store import CROSSVAL, Store
from tenfold.runs.tables import number

if TYPE_CHECKING:
    from torch import nn

    from tenfold.runs.stored_predictions import Predictions

FIELDS_OF_DATA = ("batch_size", "stages")
"""Fields whose values may be set from the data or from measurements; a run is recorded with the resulting values."""


def as_asked(experiment: Experiment, metadata: Mapping[str, Any]) -> Experiment:
    """Return a recorded experiment as requested, before the data or measurements set any fields."""
    changed = {name: value for name, value in metadata.get("asked", {}).items() if name in FIELDS_OF_DATA}
    with suppress(ExperimentError):  # the record is damaged
        return experiment.replace(**changed) if changed else experiment
    return experiment


def as_trained(experiment: Experiment, run: "Run") -> Experiment:
    """Return the requested experiment of a run, with the values that the data or measurements have set."""
    recorded = run.experiment.flat()
    measured = {name: recorded[name] for name in FIELDS_OF_DATA if name in run.metadata.get("asked", {})}
    return experiment.replace(**measured) if measured else experiment


def fold_name(fold: int, repeat: int, node: int) -> str:
    """Return the name of a fold: "fold 3", "repeat 2, fold 3", "node 1, repeat 2, fold 3".

    The first repeat is omitted, and so is node 0, which stands for folds of all data.
    """
    of_node = f"node {node}, " if node else ""
    of_repeat = f"repeat {repeat}, " if repeat > 1 else ""
    return f"{of_node}{of_repeat}fold {fold}"


OF_EPOCHS = ("epoch_loss", "epoch_accuracy")
"""Metrics over all training batches of an epoch, as opposed to single batches."""


class History:
    """A listener that collects the metrics after each epoch."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Keep a metric of an epoch."""
        if isinstance(event, Metric) and (event.name in OF_EPOCHS or event.part != "train"):
            row = self._rows.setdefault(event.epoch, {"epoch": event.epoch + 1})
            row |= {"step": event.step, "seconds": event.seconds}
            row[f"{event.part}_{event.name.removeprefix('epoch_')}"] = event.value

    def rows(self) -> list[dict[str, float]]:
        """Return one row per epoch."""
        return [self._rows[epoch] for epoch in sorted(self._rows)]


def details_table(title: str, metadata: Iterable[tuple[str, str]]) -> str:
    """Return a heading and a table of names and values; metadata without a value are omitted."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in metadata
        if value
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"


def values_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a heading for each column."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def short_number(name: str, value: float | None) -> str:
    """Return a metric with few digits, an accuracy in percent; empty if there is no value."""
    if value is None:
        return ""
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4g}"


BOARD_FILE = "board-address"
"""A file in a folder of runs with the address and token of the board that serves it; only its user can read it."""
_LOCAL_ADDRESS = re.compile(r"http://127\.0\.0\.1:(?P<port>[0-9]{1,5})/\?token=[\w-]{16,100}")
SHOWN_EPOCHS = 5
"""The number of most recent epochs that are shown."""


def run_html(run: "Run") -> str:
    """Return a table of a run's results, and a table with a row for each of its last epochs."""
    workers, epochs = run.result.get("workers"), run.result.get("epochs")
    part = run.result.get("part") or ""
    metadata = [(f"{part} {name}".strip(), short_number(name, value)) for name, value in run.metrics.items()]
    metadata += [("training", f"{run.seconds:.3g} s {run.clock}" if run.seconds is not None else "")]
    metadata += [("workers", str(workers or "")), ("epochs", str(epochs or "")), ("tags", " ".join(run.tags))]
    metadata += [("note", run.note), ("error", run.error.partition("\n")[0]), ("folder", str(run.path))]
    view = details_table(f"run {run.id}: {run.title}, {run.status}", metadata)
    rows = run.history[-SHOWN_EPOCHS:]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [[short_number(name, row.get(name)) for name in names] for row in rows]
    return view + (values_table([name.replace("_", " ") for name in names], shown) if rows else "") + _board_link(run)


@contextmanager
def announced_board(folder: Path, address: str) -> Iterator[None]:
    """Let notebooks of this user find a board on this machine for the duration of the block."""
    file, content = folder / BOARD_FILE, address.encode()
    with suppress(OSError):  # a read-only folder
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_bytes() == content:  # otherwise another board has taken over
                file.unlink()


def board_address(folder: Path) -> str | None:
    """Return the address of this user's board for a folder on this machine, or None if there is none."""
    try:
        descriptor = os.open(folder / BOARD_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return None
            match = _LOCAL_ADDRESS.fullmatch(file.read(200).decode("ascii", "replace"))
        if match is None:
            return None
        with socket.create_connection(("127.0.0.1", int(match["port"])), timeout=0.2):
            return match[0]
    except (OSError, OverflowError):
        return None


def _board_link(run: "Run") -> str:
    address = board_address(run.store.folder)
    if address is None:
        return ""
    page = escape(address.replace("/?", f"/run/{run.id}?"), quote=True)
    return f'<p><a href="{page}" target="_blank" rel="noopener">run {run.id} on the board</a></p>'


def _from_above(path: str) -> Any:
    """Return a function of a higher layer that uses a run's model; it is imported on first use."""
    return resolve(f"tenfold.{path}", "function")


class Run:
    """A recorded run: its experiment, status, measurements and model."""

    def __init__(
        self,
        store: Store,
        record: dict[str, Any],
        *,
        experiment: Experiment | None = None,
        weights: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        trust: bool = False,
    ) -> None:
        """Wrap a record; pass `experiment`, `weights` and `result` to avoid reading them from the store.

        `trust` allows running the code that the record names.
        """
        self.store = store
        self.id: int = record["id"]
        self.title: str = record["title"]
        self.kind: str = record["kind"]
        self.status: str = record["status"]
        """running, finished, failed or interrupted."""
        self.created: float = record["created"]
        """When the run began, in seconds since 1970."""
        self.ended: float | None = record["ended"]
        self.tags: tuple[str, ...] = tuple(record.get("tags", ()))
        """Its tags, sorted; `tag` and `untag` change them."""
        self.note: str = record.get("note", "")
        """The user's note about it; `set_note` changes it."""
        self._record = record if "result" in record else None
        self._experiment = experiment
        self._weights = weights
        self._result = result
        self.is_trusted = trust
        """Whether code named in the record may run even if you have not named it before."""

    @property
    def error(self) -> str:
        """The error that ended the run; empty for a finished run."""
        return str(self._held["error"])

    @property
    def metadata(self) -> dict[str, Any]:
        """Machine, package versions, command line, code version and data at the time of the run."""
        metadata: dict[str, Any] = self._held["metadata"]
        return metadata

    @property
    def result(self) -> dict[str, Any]:
        """All results, as numbers and text; the attributes below are its entries."""
        if self._result is None:
            self._result = self._held["result"]
        return self._result

    @property
    def experiment(self) -> Experiment:
        """The experiment; StoreError if this version of Tenfold cannot read it, see `problem`."""
        if self._experiment is None:
            if not self._held["experiment"]:
                raise StoreError(f"the experiment of run {self.id} is damaged")
            try:
                fields = self._held["experiment"]
                recorded = Experiment.recorded(fields, Origin(f"run {self.id}"))
                self._experiment = recorded.with_trusted_imports(trust=True) if self.is_trusted else recorded
            except ExperimentError as error:
                reason = str(error).replace("\n", "; ")
                raise StoreError(f"the experiment of run {self.id} cannot be read by this version: {reason}") from None
        return self._experiment

    @cached_property
    def problem(self) -> str:
        """Why the run cannot be read completely (damage, or another version recorded it); empty for most runs."""
        problems = list(self._held.get("problems", []))
        if self.recorded_fields:
            try:
                _ = self.experiment
            except StoreError as error:
                problems.append(str(error))
        return "; ".join(problems)

    @property
    def readable(self) -> bool:
        """Whether this version of Tenfold can read the run's experiment."""
        try:
            _ = self.experiment
        except StoreError:
            return False
        return True

    @property
    def recorded_fields(self) -> dict[str, Any]:
        """The recorded fields of the experiment by section, including fields unknown to this version."""
        return dict(self._held["experiment"])

    @property
    def _held(self) -> dict[str, Any]:
        """The run's data, read on first use, because a list of many runs shows little of each."""
        if self._record is None:
            self._record = self.store.find(self.id)
        return self._record

    @property
    def path(self) -> Path:
        """The folder of its artifacts: experiment.toml, model.pt, predictions.npz, console.txt, and others."""
        return self.store.path(self.id, self.title)

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions on the test part, or else the validation part; None without classes."""
        return self.metrics.get("accuracy")

    @property
    def loss(self) -> float | None:
        """Loss on the same part."""
        return self.metrics.get("loss")

    @property
    def metrics(self) -> dict[str, float]:
        """All final measurements, by name."""
        return _numbers(self.result.get("metrics"))

    def metrics_on(self, part: str) -> dict[str, float]:
        """Return the metrics on a part of the data (train, validation or test); empty if it was not measured.

        The metrics belong to the final model. On the training part, they are means over the batches of its last epoch.
        For a cross-validation, they are means over its folds.
        """
        if part not in PARTS:
            raise ExperimentError(f"unknown part '{part}'; known: {', '.join(PARTS)}")
        spread, fold = self.result.get("spread"), self.result.get("crossval")
        if spread is not None:
            return _numbers({name: values["mean"] for name, values in spread.get(part, {}).items()})
        if fold is not None:
            return _numbers(fold.get("metrics", {}).get(part))
        if part == self.result.get("part"):
            return self.metrics
        last = self.result.get("best_epoch")
        rows = [row for row in self.history if last is None or row["epoch"] == last]
        row = rows[-1] if rows else {}
        return {name.removeprefix(f"{part}_"): value for name, value in row.items() if name.startswith(f"{part}_")}

    @property
    def seconds(self) -> float | None:
        """Training time by `clock`, excluding startup, evaluation and saving, which are in `times`."""
        return number(self.result.get("seconds"))

    @property
    def seconds_to_target(self) -> float | None:
        """Training time after which `training.target` was reached, see `clock`; None if it was not."""
        return self.result.get("seconds_to_target")

    @property
    def clock(self) -> Literal["measured", "predicted"]:
        """Whether the run's times were measured, or predicted for a virtual cluster."""
        clock = self.result.get("clock")
        if clock is None:
            held = self._held["experiment"] if self._experiment is None else self._experiment.model_dump(mode="json")
            machine = held.get("machine")
            engine = machine.get("engine") if isinstance(machine, dict) else None
            clock = "predicted" if engine == "virtual" else "measured"
        return "predicted" if clock == "predicted" else "measured"

    @property
    def predicted_seconds(self) -> float | None:
        """Training time predicted for a virtual cluster; None if it was measured."""
        return self.seconds if self.clock == "predicted" else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The range that should contain the training times of 80% of runs; None if the time was measured."""
        low, high = self.result.get("interval") or (None, None)
        return (low, high) if low is not None and high is not None else None

    @property
    def times(self) -> dict[str, float]:
        """Seconds by kind, see `clock`: start, data, copy, compute, wait, communicate, evaluate, save."""
        return _numbers(self.result.get("times"))

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """One row per epoch: epoch, step, seconds, train_loss, train_accuracy, and metrics of the evaluation part."""
        history = History()
        for metric in self.measurements():
            history(metric)
        return history.rows()

    @cached_property
    def model(self) -> "nn.Module":
        """The trained network, in evaluation mode."""
        network: nn.Module = _from_above("api.predict:build_model")(self)
        return network

    def predict(self, x: Any) -> Any:
        """Return the model's predictions for samples x: class numbers (0 or 1 for a single logit), or numbers.

        `x` is a tensor or an array with samples in the first dimension, and the result has the same type; any data for
        `train`, with or without targets, are accepted, too. Inputs are scaled as in training: uint8 is divided by 255;
        for a run on a built-in data set, integers are raw pixels, as in its files.
        """
        return _from_above("api.predict:predict")(self, x)

    def predict_proba(self, x: Any) -> Any:
        """Return the probability of each class for samples x, or of class 1 for a single logit."""
        return _from_above("api.predict:predict")(self, x, probabilities=True)

    def evaluate(
        self, data: Any = None, *, part: str | None = None, metrics: Any = None, loss: Any = None
    ) -> dict[str, float]:
        """Return the loss and the metrics of the model on a part of the run's own data, or on other data.

        `data` is anything that `train` accepts. `part` is train, validation or test; by default the test part, or all
        samples of `data` that is not divided into parts. `metrics` and `loss` replace the experiment's.
        """
        evaluation = _from_above("api.predict:evaluate")(self, data, part=part, metrics=metrics, loss=loss)
        return dict(evaluation.metrics)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write an HTML report on the run, one self-contained file, and return its path."""
        written: Path = _from_above("reports.pages.run_pages:report")(self, path)
        return written

    @property
    def weights(self) -> dict[str, Any]:
        """The trained network's state."""
        if self._weights is not None:
            return self._weights
        if not (self.path / "model.pt").exists():
            way_out = {
                "finished": "its file model.pt is gone or could not be written; train again",
                "running": "it is still running",
            }
            otherwise = f"it is {self.status}; `tenfold resume {self.id}` continues it"
            raise StoreError(f"run {self.id} has no saved model: {way_out.get(self.status, otherwise)}")
        return checkpoint.load_weights(self.path / "model.pt")

    def tag(self, *names: str) -> None:
        """Add tags to the run; `list_runs(filter="tag=...")` finds runs by tag."""
        self.store.tag(self.id, *names)
        self.tags = tuple(sorted({*self.tags, *names}))

    def untag(self, *names: str) -> None:
        """Remove tags from the run."""
        self.store.untag(self.id, *names)
        self.tags = tuple(name for name in self.tags if name not in names)

    def set_note(self, text: str) -> None:
        """Replace the run's note; "" removes it."""
        self.store.set_note(self.id, text)
        self.note = text

    @property
    def console(self) -> str:
        """The last part of the run's output, including its worker processes, as plain text."""
        return read_console(self.path)

    @cached_property
    def predictions(self) -> "Predictions":
        """The samples of the test part: their numbers, the model's outputs and predictions, and the targets.

        For a cross-validation, every training sample with the outputs of the model that was validated on it.
        """
        return self.predictions_on("test" if self.kind != CROSSVAL else "validation")

    def predictions_on(self, part: str) -> "Predictions":
        """Return the samples of a part ("test" or "validation") with the model's outputs and predictions."""
        from tenfold.runs import stored_predictions

        if self.kind == CROSSVAL:
            folds = [self.other(fold["id"]) for fold in self.store.folds(self.id) if fold["status"] == "finished"]
            files = [
                stored
                for fold in folds
                if (stored := stored_predictions.load(fold.path / stored_predictions.FILE, part))
            ]
            stored = stored_predictions.join(files) if files else None
        else:
            stored = stored_predictions.load(self.path / stored_predictions.FILE, part)
        if stored is None:
            limit = stored_predictions.LIMIT // 2**20
            raise StoreError(
                f"run {self.id} has no stored predictions for a {part} part: a finished run has them, "
                f"unless training.save_predictions = false, the part is missing, or its outputs exceed {limit} MiB"
            )
        return stored

    def other(self, run: int, *, weights: dict[str, Any] | None = None) -> "Run":
        """Return another run of the same store, or this one with other weights; its folds also get its model."""
        opened = Run(self.store, self.store.find(run), weights=weights, trust=self.is_trusted)
        if opened.metadata.get("crossval", {}).get("parent", run) == self.id:
            opened._experiment = opened.experiment.replace(model=self.experiment.model)
        return opened

    def measurements(self) -> Iterator[Metric]:
        """Every metric event, in order."""
        return (event for event in self.events("metric") if isinstance(event, Metric))

    def spans(self) -> Iterator[Span]:
        """Every span event, in order."""
        return (event for event in self.events("span") if isinstance(event, Span))

    @property
    def timeline(self) -> list[Span]:
        """The spans of time of every worker, in the order of their start; see `clock`."""
        return sorted(self.spans(), key=lambda span: (span.at, span.worker))

    def lifecycle(self) -> Iterator[Lifecycle]:
        """Every lifecycle event, in order."""
        return (event for event in self.events("lifecycle") if isinstance(event, Lifecycle))

    def events(self, kind: str | None = None) -> Iterator[Event]:
        """Every event of one type ("metric", "span", "lifecycle"), or of all types."""
        return self.store.events(self.id, kind)

    def trace(self) -> dict[str, Any]:
        """Return the timeline of each worker in the JSON format of Perfetto and chrome://tracing."""
        return chrome_trace(self.events(), clock=self.clock)

    def summary(self) -> dict[str, Any]:
        """Return the run as a dictionary of JSON values."""
        return {
            "id": self.id,
            "title": self.title,
            "kind": self.kind,
            "status": self.status,
            "error": self.error,
            "path": str(self.path),
            "created": self.created,
            "tags": list(self.tags),
            "note": self.note,
            **self.result,
            "clock": self.clock,
            "experiment": self.experiment.flat() if self.readable else self.recorded_fields,
            **({"problem": self.problem} if self.problem else {}),
        }

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays for the run."""
        return run_html(self)

    def __repr__(self) -> str:
        scores = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        time = f", {self.seconds:.3g} s {self.clock}" if self.seconds is not None else ""
        lr = self.metadata.get("lr") or {"base": 0.0, "scale": 1}
        base, scale = lr["base"], lr["scale"]
        scaled = f", lr {base * scale:.3g} = {base:.3g} × {scale:.3g}" if scale != 1 else ""
        return f"<Run {self.id} {self.title}: {self.status}{scores}{time}{scaled}>"


def _numbers(values: Any) -> dict[str, float]:
    """Return only the numeric values, by name; a damaged record may contain anything."""
    named = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in named if isinstance(value, int | float)}
