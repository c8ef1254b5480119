"""Runs that look like real ones, made without training."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.experiment import Experiment
from tenfold.runs import Recorder, Run, Store
from tenfold.runs.events import Ended, EpochEnded, Event, Metric, Span, Started, Warned

FACTS: dict[str, Any] = {
    "machine": {
        "host": "somewhere",
        "platform": "Linux-6.1-x86_64",
        "python": "3.11.9",
        "cpu": {"model": "Example CPU @ 2.40GHz", "logical": 4, "physical": 2, "instructions": ["avx2", "avx512f"]},
        "memory": {"total": 16 * 2**30, "available": 9 * 2**30, "limit": None},
        "gpus": [],
    },
    "packages": {"tenfold": "0.1.0", "torch": "2.10.0"},
    "command": "tenfold train --set lr=0.05",
    "code": "1a2b3c4 (changed)",
    "parameters": 61706,
    "data": {"name": "mnist", "shape": [1, 28, 28], "classes": 10, "train": 60000, "validation": 0, "test": 10000},
}


def started(experiment: Experiment, steps_per_epoch: int, samples: int = 60000) -> Started:
    return Started(
        at=0.0,
        steps_per_epoch=steps_per_epoch,
        batch_size=experiment.training.samples_per_step,
        workers=experiment.parallel.workers,
        train_samples=samples,
    )


def epoch_events(
    experiment: Experiment,
    epoch: int,
    *,
    steps_per_epoch: int = 938,
    accuracy: bool = True,
    step_seconds: float = 0.0036,
) -> list[Event]:
    """Return what training emits in one epoch."""
    noise = random.Random(experiment.training.seed * 1000 + epoch)
    lr = experiment.training.lr or 0.05
    events: list[Event] = []
    every = experiment.training.log_every
    at0 = 1.2 + epoch * (steps_per_epoch * step_seconds + 0.4)
    for step in range(1, steps_per_epoch + 1):
        total = epoch * steps_per_epoch + step
        at = at0 + (step - 1) * step_seconds
        for worker in range(experiment.parallel.workers):
            shares = {"data": 0.08, "compute": 0.8, "wait": 0.05 + 0.02 * worker, "communicate": 0.05}
            if experiment.parallel.workers == 1:
                shares = {"data": 0.1, "compute": 0.9}
            if total <= 200:
                begin = at
                for kind, share in shares.items():
                    events.append(Span(at=begin, kind=kind, seconds=share * step_seconds, epoch=epoch, worker=worker))
                    begin += share * step_seconds
            elif step % every == 0:
                for kind, share in shares.items():
                    begin = at - (every - 1) * step_seconds
                    events.append(
                        Span(
                            at=begin,
                            kind=kind,
                            seconds=share * step_seconds * every,
                            count=every,
                            epoch=epoch,
                            worker=worker,
                        )
                    )
        if step % every == 0:
            value = 2.3 * math.exp(-total * lr / 12) + 0.05 + 0.1 * noise.random() / (1 + epoch)
            seconds = total * step_seconds
            common = {"part": "train", "step": total, "epoch": epoch, "seconds": seconds, "at": at}
            events.append(Metric(name="loss", value=value, **common))
            events.append(Metric(name="lr", value=lr, **common))
    total = (epoch + 1) * steps_per_epoch
    end = {"step": total, "epoch": epoch, "seconds": total * step_seconds, "at": at0 + steps_per_epoch * step_seconds}
    reached = 0.3 * math.exp(-epoch * 0.8) + 0.04 + 0.3 * abs(lr - 0.08) + 0.004 * noise.random()
    events.append(Metric(name="epoch_loss", value=reached, part="train", **end))
    events.append(Metric(name="loss", value=reached * 0.9 + 0.01, part="test", **end))
    if accuracy:
        events.append(Metric(name="accuracy", value=1 - reached * 0.35, part="test", **end))
    events.append(Span(at=end["at"], kind="evaluate", seconds=0.38, epoch=epoch))
    metrics = {"train_loss": reached, "test_loss": reached * 0.9 + 0.01}
    metrics |= {"test_accuracy": 1 - reached * 0.35} if accuracy else {}
    events.append(EpochEnded(at=end["at"] + 0.39, epoch=epoch, metrics=metrics))
    return events


def make_run(
    folder: Path,
    *,
    status: str = "finished",
    epochs_done: int | None = None,
    error: str = "",
    metadata: dict[str, Any] | None = None,
    warnings: tuple[str, ...] = (),
    steps_per_epoch: int = 938,
    accuracy: bool = True,
    empty: bool = False,
    result: dict[str, Any] | None = None,
    kind: str = "train",
    **fields: Any,
) -> Run:
    """Record a run of an experiment with these fields, and return it."""
    experiment = Experiment(**fields)
    store = Store(folder)
    number = store.create(experiment, kind=kind, metadata=FACTS if metadata is None else metadata)
    record = Recorder(store, number)
    epochs = experiment.training.epochs if epochs_done is None else epochs_done
    came_out: dict[str, Any] = {}
    if not empty:
        record(started(experiment, steps_per_epoch))
        record(Span(at=0.0, kind="start", seconds=1.2))
        for warning in warnings:
            record(Warned(at=0.5, text=warning))
        last: dict[str, float] = {}
        for epoch in range(epochs):
            for event in epoch_events(experiment, epoch, steps_per_epoch=steps_per_epoch, accuracy=accuracy):
                record(event)
                if isinstance(event, Metric) and event.part == "test":
                    last[event.name] = event.value
        seconds = epochs * steps_per_epoch * 0.0036
        if status != "running":
            record(Ended(at=seconds + 3, status=status, error=error))
        if status == "finished":
            workers = experiment.parallel.workers
            shares = (
                {"data": 0.1, "compute": 0.9}
                if workers == 1
                else {"data": 0.08, "compute": 0.8, "wait": 0.07, "communicate": 0.05}
            )
            times = {kind: share * seconds for kind, share in shares.items()}
            came_out = {
                "part": "test",
                "metrics": last,
                "seconds": seconds,
                "times": {"start": 1.2, **times, "evaluate": 0.38 * epochs, "save": 0.02},
                "epochs": epochs,
                "steps": epochs * steps_per_epoch,
                "samples": epochs * 60000,
                "samples_per_second": epochs * 60000 / seconds,
                "workers": workers,
                "threads": 2,
                "stopped_early": False,
                "best_epoch": None,
            }
    if status == "running":  # it is claimed by this process as long as its store exists, which the run refers to
        record.flush()
    else:
        record.close(result=came_out | (result or {}), status=status, error=error)
    return read_run(store, number)


def read_run(store: Store, number: int, experiment: Experiment | None = None) -> Run:
    return Run(store, store.find(number), experiment=experiment)


def make_virtual_run(
    folder: Path,
    *,
    calibrated: bool = True,
    steps_per_epoch: int = 938,
    result: dict[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """Record a run on a virtual cluster: the same events, of times that were predicted."""
    seconds = fields.get("epochs", 3) * steps_per_epoch * 0.0036
    told = {
        "clock": "predicted",
        "interval": [0.95 * seconds, 1.06 * seconds],
        "calibrated": calibrated,
        "reasons": ["Two workers swap their weights in every round: <b>all</b> are the same exchange."],
        "simulated_in": 2.1,
    }
    return make_run(folder, result=told | (result or {}), engine="virtual", steps_per_epoch=steps_per_epoch, **fields)


def made_folds(count: int = 5, *, failed: Sequence[int] = (), cores: int = 2, repeats: int = 1) -> dict[str, Any]:
    """Return a cross-validation's own part of a result, with folds that take turns on the cores."""
    noise = random.Random(count)
    folds: list[dict[str, Any]] = []
    for place in range(count * repeats):
        turn, core = divmod(place, cores)
        last = count * repeats % cores and turn == count * repeats // cores
        scores = {
            part: high - 0.01 * noise.random() for part, high in (("train", 0.99), ("validation", 0.97), ("test", 0.96))
        }
        is_failed = place + 1 in failed
        folds.append(
            {
                "fold": place % count + 1,
                "repeat": place // count + 1,
                "node": 0,
                "run": place + 2,
                "status": "failed" if is_failed else "finished",
                "error": 'ValueError: <b>no</b>\n  File "model.py", line 3' if is_failed else "",
                "metrics": {
                    part: {} if is_failed else {"accuracy": score, "loss": 1 - score} for part, score in scores.items()
                },
                "seconds": 0.0 if is_failed else 1.8 + 0.1 * noise.random(),
                "began": 2.1 * turn,
                "ended": 2.1 * turn + (0.7 if is_failed else 1.9 + 0.15 * noise.random()),
                "cores": [core, core + cores // 2] if last else [core],
                "threads": 2 if last else 1,
                "train_samples": 800,
                "validation_samples": 200,
            }
        )
    spread: dict[str, Any] = {}
    for part in ("train", "validation", "test"):
        for name in ("accuracy", "loss"):
            values = [fold["metrics"][part][name] for fold in folds if fold["status"] == "finished"]
            mean, apart = fmean(values), stdev(values)
            bounds = {"low": mean - apart, "high": mean + apart}
            spread.setdefault(part, {})[name] = {"mean": mean, "std": apart, **bounds}
    return {
        "part": "validation",
        "metrics": {name: values["mean"] for name, values in spread["validation"].items()},
        "seconds": max(fold["ended"] for fold in folds),
        "times": {"start": 0.1, "data": 0.1, "compute": 1.7, "evaluate": 0.1, "save": 0.01},
        "mode": "folds-over-workers",
        "folds": folds,
        "spread": spread,
        "models": {
            "best": {"fold": 3, "metrics": {"accuracy": 0.9612, "loss": 0.11}},
            "average": {"metrics": {"accuracy": 0.9512, "loss": 0.12}},
            "vote": {"metrics": {"accuracy": 0.9712, "loss": 0.09}},
        },
    }


def make_crossval(folder: Path, result: dict[str, Any] | None = None, **fields: Any) -> Run:
    """Record a cross-validation, without the runs of its folds."""
    store = Store(folder)
    experiment = Experiment(**{"folds": 5} | fields)
    number = store.create(experiment, kind="crossval", metadata=FACTS)
    record = Recorder(store, number)
    came_out = made_folds(experiment.parallel.folds or 5) if result is None else result
    common = {"epochs": 3, "steps": 900, "workers": experiment.parallel.workers, "threads": 2}
    record.close(result=common | came_out, status="finished")
    return read_run(store, number)


def made_prediction(
    workers: int, *, compute: float = 100.0, talk: float = 0.01, calibrated: bool = True, reasons: Sequence[str] = ()
) -> TimePrediction:
    """Return a prediction: computing is divided, talking grows with the workers, and waiting is a tenth of both."""
    computing, talking = compute / workers, talk * workers * (workers > 1)
    waiting = 0.1 * (computing + talking) * (workers > 1)
    seconds = computing + talking + waiting
    kinds = {"start": 1.0, "compute": computing, "wait": waiting, "communicate": talking, "evaluate": 0.5, "save": 0.1}
    return TimePrediction(
        seconds=seconds,
        interval=(seconds * 0.95, seconds * 1.06),
        total=seconds + 1.6,
        times={kind: np.full(workers, value) for kind, value in kinds.items()},
        bytes_per_worker=np.full(workers, 1e6 * (workers > 1)),
        marks={1: seconds},
        spans=(),
        reasons=tuple(reasons),
        calibrated=calibrated,
    )
