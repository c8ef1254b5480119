"""All runs as rows of the board's table: read once, and again only where something changed."""

import hashlib
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tenfold.api.open_run import load_model
from tenfold.common.metric_table import loss_last
from tenfold.experiment import FIELDS, Experiment
from tenfold.report.formatting import field_value
from tenfold.runs import FoldChanged, FoldsStarted, Run, Started, Store
from tenfold.runs.run_filter import filter_runs
from tenfold.runs.storage.follower import Follower
from tenfold.runs.storage.store_tables import RunRecord
from tenfold.runs.store import CROSSVAL, FOLD

ALWAYS = ("model", "data", "workers", "strategy", "sync_every", "epochs", "batch_size", "optimizer", "lr", "seed")
"""Fields that are sent of every run; of the others, those that are not at their defaults."""


@dataclass
class Listed:
    """A run, its row, and the version of the list in which the row changed last."""

    run: Run
    row: dict[str, Any]
    version: int


class RunList:
    """The rows of all runs; every change gets a version, so that a page can ask for what changed since its own."""

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
        """Read what has changed in the store, and how far the running runs are."""
        with self._lock:
            written = self.follower.version()
            running = [number for number, one in self._listed.items() if one.row["status"] == "running"]
            if written == self._store_version and not running:
                return
            self._store_version = written
            known = {record["id"]: record for record in self.store.runs()}
            changed = [number for number, record in known.items() if self._tokens.get(number) != _token(record)]
            for record in self._read(changed):
                run = Run(self.store, record, build=load_model)
                self._put(run, self._fixed(run))
                self._tokens[run.id] = _token(known[run.id])
            for number in set(running) & set(known) - set(changed):
                self._put(self._listed[number].run, self._listed[number].row)
            for number in set(self._listed) - set(known):
                self.version += 1
                del self._listed[number], self._tokens[number]
                self._removed.append((self.version, number))

    def since(self, version: int) -> dict[str, Any]:
        """Return the rows that changed after a version, the numbers of removed runs, and the version now."""
        with self._lock:
            rows = [one.row for one in self._listed.values() if one.version > version]
            gone = [run for at, run in self._removed if at > version]
            return {"rows": rows, "gone": gone, "version": self.version}

    def select(self, text: str) -> list[int]:
        """Return the numbers of the runs that a filter selects; words without an operator are looked for in titles."""
        conditions, words = split_filter(text)
        with self._lock:
            listed = list(self._listed.values())
        chosen = {run.id for run in filter_runs([one.run for one in listed], conditions)} if conditions else None
        return [
            one.run.id
            for one in listed
            if (chosen is None or one.run.id in chosen) and all(word in _text(one.row) for word in words)
        ]

    def _read(self, changed: list[int]) -> Iterable[RunRecord]:
        """Return the records of runs; all at once where there are many."""
        if len(changed) <= 20:
            return [self.store.find(run) for run in changed]
        wanted = set(changed)
        return (record for record in self.store.records() if record["id"] in wanted)

    def _put(self, run: Run, row: dict[str, Any]) -> None:
        row = row | {"progress": progress_of(run, self.follower) if run.status == "running" else None}
        if run.id not in self._listed or self._listed[run.id].row != row:
            self.version += 1
            self._listed[run.id] = Listed(run, row, self.version)

    def _fixed(self, run: Run) -> dict[str, Any]:
        """Return what a row shows that does not change while the run is running."""
        recorded = _recorded(run.recorded_fields)
        fields = {
            name: field_value(value)
            for name, value in recorded.items()
            if name in ALWAYS or (value != self._defaults.get(name) and value not in (None, {}, []))
        }
        score = next(iter(loss_last(run.metrics).items()), (None, None))
        return {
            "id": run.id,
            "title": run.title,
            "kind": run.kind,
            "status": run.status,
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
            "parent": run.facts.get("crossval", {}).get("parent") if run.kind == FOLD else None,
        }


def progress_of(run: Run, follower: Follower) -> dict[str, Any]:
    """Return how far a running run is, as a share, and how many seconds are left if it continues at this speed."""
    stages, metric = follower.stages(run.id), follower.latest_metric(run.id)
    if run.kind == CROSSVAL:
        return _fold_progress(stages)
    epochs = run.experiment.training.epochs if run.readable else 0
    started: dict[str, Any] = next((row for row in reversed(stages) if row.get("what") == Started.KIND), {})
    per_epoch, step = started.get("steps_per_epoch") or 0, metric.get("step") or 0
    whole, before = epochs * per_epoch, started.get("epoch", 0) * per_epoch
    if not whole or not step:
        return {"share": 0.0, "done": 0, "of": epochs, "unit": "epoch", "left": None}
    passed = metric["at"] - started["at"]
    left = passed / (step - before) * (whole - step) if step > before and run.clock == "measured" else None
    return {"share": min(1.0, step / whole), "done": metric["epoch"] + 1, "of": epochs, "unit": "epoch", "left": left}


def _fold_progress(stages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole = next((len(row["names"]) for row in stages if row.get("what") == FoldsStarted.KIND), 0)
    ended = [
        row for row in stages if row.get("what") == FoldChanged.KIND and row.get("status") in ("finished", "failed")
    ]
    done = len({row.get("worker") for row in ended})
    left = ended[-1]["at"] / done * (whole - done) if done else None
    return {"share": done / whole if whole else 0.0, "done": done, "of": whole, "unit": "fold", "left": left}


def split_filter(text: str) -> tuple[str, list[str]]:
    """Return the conditions of a filter, and its other words in lower case."""
    words = text.replace(" =", "=").replace("= ", "=").split()
    conditions = [word for word in words if any(sign in word for sign in "=<>~")]
    return " ".join(conditions), [word.lower() for word in words if word not in conditions]


def _text(row: dict[str, Any]) -> str:
    fields = row["fields"]
    shown = [f"{row['id']}", row["title"], row["status"], row["kind"], row["note"], *row["tags"]]
    return " ".join([*shown, *(fields.get(name, "") for name in ("model", "data", "strategy", "optimizer"))]).lower()


def _token(record: RunRecord) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("title", "status", "ended", "tags", "note"))


def _recorded(sections: dict[str, Any]) -> dict[str, Any]:
    """Return recorded fields by their short names."""
    found = {}
    for name, (section, field) in FIELDS.items():
        held = sections.get(section)
        if isinstance(held, dict) and field in held:
            found[name] = held[field]
    return found


def _digest(recorded: dict[str, Any], clock: str) -> str:
    """Return a name of the setting: the same for runs that differ in the seed only."""
    setting = {name: value for name, value in recorded.items() if name != "seed"}
    return hashlib.sha256(json.dumps([setting, clock], sort_keys=True, default=str).encode()).hexdigest()[:12]
