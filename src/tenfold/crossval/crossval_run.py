"""A cross-validation as one run: it has the folds trained, and keeps count of them."""

import time
from pathlib import Path
from typing import Any, Literal

from tenfold.crossval.combine import AVERAGE, Entry, Models, entry, rank, result_of
from tenfold.crossval.fold import Job, Setting
from tenfold.crossval.layout import mode_of, places
from tenfold.crossval.modes import choose_mode
from tenfold.engines import Engine, Outcome
from tenfold.errors import StoreError, TrainingError
from tenfold.runs import (
    Clock,
    Emit,
    Event,
    FoldChanged,
    FoldsStarted,
    Metric,
    Recorded,
    Started,
    Store,
    Warned,
    WorkerDropped,
    checkpoint,
)
from tenfold.runs.resumption import Resumption
from tenfold.runs.store import FOLD
from tenfold.workers.task import Task

Status = Literal["started", "resumed", "finished", "failed"]
LEFT_ALONE_SECONDS = 3.0
"""How long processes of an earlier attempt may need to notice that they are alone, and end."""


class CrossValidationRun(Engine):
    """Trains all folds, as an engine trains one model."""

    name = "crossval"

    def __init__(self, store: Store, parent: int, facts: dict[str, Any], listen: Emit) -> None:
        self.store = store
        self.parent = parent
        self.facts = facts
        self.listen = listen
        self.entries: dict[int, Entry] = {}
        """What is known of each fold, by its place."""
        self._results: dict[int, dict[str, Any]] = {}
        self._runs: dict[int, int] = {}
        self._began: dict[int, float] = {}

    def run(self, task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:  # noqa: ARG002
        """Train every fold that is not finished yet, and put all together."""
        self._task, self._clock, self._emit = task, clock, emit
        self._places = places(task.experiment, task.splits, task.shards)
        written = type(task.experiment)(**task.experiment.model_dump(mode="json"))
        setting = Setting(task, written, self.store, self.parent, self.facts, clock)
        earlier = earlier_folds(self.store, self.parent)
        emit(
            FoldsStarted(
                at=clock.now(),
                mode=mode_of(task.experiment),
                names=tuple(place.name for place in self._places),
                epochs=task.experiment.training.epochs,
                resumed=bool(earlier),
            )
        )
        jobs = []
        for index, place in enumerate(self._places):
            record = earlier.get(place.key)
            if record is not None and record["status"] == "finished":
                self._runs[index] = record["id"]
                self._finish(index, record["result"])
            else:
                jobs.append(Job(index, place, run=record["id"] if record else None))
        if jobs:
            choose_mode(task.experiment)(setting, jobs, self._relay, self._done)
        if not self._results:
            first = self._in_order()[0]
            raise TrainingError(
                f"all {len(self._places)} folds failed; {self._places[0].name}: {first['error']} "
                f"(`tenfold show {first['run'] or self.parent}` tells more)"
            )
        return self._outcome()

    def known(self) -> dict[str, Any]:
        """Return what is known of the result before the end."""
        return {"mode": mode_of(self._task.experiment), "folds": self._in_order()} if self.entries else {}

    def _relay(self, index: int, event: Event) -> None:
        """Pass on what happens in a fold; its own run keeps the numbers, this one only that it began and ended."""
        if isinstance(event, Metric):
            self.listen(event)
        elif isinstance(event, Recorded):
            self._runs[index], self._began[index] = event.run, self._clock.now()
        elif isinstance(event, Started):
            status: Status = "resumed" if event.resumed else "started"
            self._tell(index, status, steps_per_epoch=event.steps_per_epoch)
        elif isinstance(event, Warned | WorkerDropped):
            self._warn(f"{self._places[index].name}: {event.text}")

    def _done(self, job: Job, result: dict[str, Any] | None, error: str) -> None:
        if result is not None:
            self._finish(job.index, result)
            return
        run, now = self._runs.get(job.index, job.run), self._clock.now()
        about = {
            "began": self._began.get(job.index, now),
            "ended": now,
            "cores": list(job.cores),
            "threads": job.threads,
        }
        self.entries[job.index] = entry(job.place, run, about, error=error)
        if run is not None and job.index in self._began:
            record = self.store.find(run)
            if record["status"] != "failed":  # its process could not say so any more
                self.store.update(run, result=record["result"], status="failed", error=error)
        self._tell(job.index, "failed", error=error.partition("\n")[0])

    def _finish(self, index: int, result: dict[str, Any]) -> None:
        self._results[index] = result
        place, seconds = self._places[index], result["seconds"]
        self.entries[index] = entry(place, self._runs.get(index), result["crossval"], seconds)
        self._tell(index, "finished", seconds=seconds)
        if result.get("problem"):
            self._warn(f"{place.name}: {result['problem']}")

    def _tell(
        self, index: int, status: Status, *, steps_per_epoch: int = 0, seconds: float | None = None, error: str = ""
    ) -> None:
        place = self._places[index]
        self._emit(
            FoldChanged(
                at=self._clock.now(),
                worker=index,
                status=status,
                fold=place.fold,
                repeat=place.repeat,
                node=place.node,
                run=self._runs.get(index),
                steps_per_epoch=steps_per_epoch,
                seconds=seconds,
                metrics=self.entries[index]["metrics"]["validation"] if index in self.entries else {},
                error=error,
            )
        )

    def _warn(self, text: str) -> None:
        self._emit(Warned(at=self._clock.now(), text=text))

    def _in_order(self) -> list[Entry]:
        return [self.entries[index] for index in sorted(self.entries)]

    def _outcome(self) -> Outcome:
        """Return the result and the best model's weights; what could not be saved cannot be averaged, and is told."""
        entries = self._in_order()
        result = result_of(self._task, entries, list(self._results.values()))
        finished = sorted(self._results)
        best = min(finished, key=lambda index: rank(entries[index]["metrics"]["validation"]))
        weights: dict[str, Any] = {}
        result["models"] = {
            "best": {"fold": best + 1, "metrics": entries[best]["metrics"]["test"]},
            "average": {"metrics": {}},
            "vote": {"metrics": {}},
        }
        folders = {index: self._folder(entries[index]["run"]) for index in finished}
        models = Models(self._task, list(folders.values()), [entries[index]["train_samples"] for index in finished])
        try:
            weights = dict(checkpoint.load(folders[best] / "model.pt"))
            result["models"]["average"]["metrics"] = models.average(self._folder(self.parent) / AVERAGE)
            result["models"]["vote"]["metrics"] = models.vote()
        except StoreError as error:
            self._warn(f"the models of the folds cannot be put together: {error}")
        failed = [index for index, one in enumerate(entries) if one["status"] == "failed"]
        result["failed"] = [f"{self._places[index].name}: {entries[index]['error']}" for index in failed]
        return Outcome(result, weights)

    def _folder(self, run: int) -> Path:
        return self.store.path(run, self.store.find(run)["title"])


def earlier_folds(store: Store, parent: int) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Return the runs of folds that an earlier attempt has left, when none of its processes lives any more."""
    until = time.monotonic() + LEFT_ALONE_SECONDS
    while True:
        found = {}
        for record in store.runs():
            about = record["facts"].get("crossval", {}) if record["kind"] == FOLD else {}
            if about.get("parent") == parent:
                found[about["node"], about["repeat"], about["fold"]] = record
        if time.monotonic() > until or all(record["status"] != "running" for record in found.values()):
            return found
        time.sleep(0.05)
