"""The types of the entries of recorded results and metadata, by which damaged entries are recognized."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tenfold.runs.storage.claim import LostWorker

Metrics = dict[str, float]


class RecordedFold(BaseModel):
    """An entry of `folds`."""

    fold: int
    repeat: int
    node: int
    run: int | None
    status: str
    error: str
    metrics: dict[str, Metrics]
    seconds: float
    began: float
    ended: float
    cores: list[int]
    threads: int | None
    train_samples: int
    validation_samples: int


class FoldPlace(BaseModel):
    """The metadata of a fold."""

    parent: int
    fold: int
    repeat: int
    node: int


class SweepFacts(BaseModel):
    """What a sweep tries, and what it looks for."""

    space: dict[str, str]
    sampler: str
    objective: str
    lower: bool
    part: str
    prune: bool
    trials: int


class SweepResult(BaseModel):
    """What came of a sweep."""

    best: int | None = None
    importance: dict[str, float] = Field(default_factory=dict)
    asked: dict[str, dict[str, Any]] = Field(default_factory=dict)
    wanted: int = 0


class TrialPlace(BaseModel):
    """The metadata of a trial."""

    parent: int
    number: int
    values: dict[str, Any]


class TrialResult(BaseModel):
    """What the sweep looks for, at the end of a trial and after each epoch."""

    value: float | None
    curve: list[float | None]


class DataFacts(BaseModel):
    """The metadata of a data set."""

    name: str | None = None
    shape: list[int | list[Any]] | dict[str, Any]
    classes: int | None = None
    notes: list[str] = []
    outputs: int | None = None
    train: int = 0
    validation: int = 0
    test: int = 0
    fingerprint: str | None = None


class FoldResult(BaseModel):
    """What a fold's result says of its part in the cross-validation."""

    metrics: dict[str, Metrics] = {}
    began: float
    ended: float
    cores: list[int]
    threads: int | None


class ShardFacts(BaseModel):
    """How the training data were divided."""

    kind: str
    samples: list[int]
    classes: list[list[int]] | None = None
    once: bool | None = None


class CoreFacts(BaseModel):
    """Which worker ran on which CPUs."""

    workers: list[list[int]] = []


class MachineFacts(BaseModel):
    """The machine that a run ran on."""

    cpu: dict[str, Any] | None = None
    memory: dict[str, float | None] | None = None
    gpus: list[dict[str, Any]] | None = None


RESULT: dict[str, Any] = {
    "part": str | None,
    "metrics": Metrics,
    "seconds": float | None,
    "times": Metrics,
    "epochs": int,
    "steps": int,
    "samples": int,
    "samples_per_second": float | None,
    "bytes_moved": float,
    "workers": int,
    "lost": list[LostWorker],
    "threads": int | None,
    "best_epoch": int | None,
    "stopped_early": bool,
    "stopped_by": str,
    "listening_seconds": float,
    "energy_joules": float,
    "clock": str,
    "interval": list[float] | None,
    "reasons": list[str],
    "simulated_in": float,
    "baseline_seconds": float,
    "speedup": float,
    "crossval": FoldResult,
    "sweep": SweepResult,
    "trial": TrialResult,
    "mode": str,
    "folds": list[RecordedFold],
    "failed": list[str],
    "spread": dict[str, dict[str, dict[str, Any]]],
    "models": dict[str, dict[str, Any]],
    "problem": str,
    "peak_memory": list[float],
    "load": dict[str, float | None] | None,
    "calibration_load": float,
    "first_in_process": bool,
    "seconds_to_target": float | None,
    "steps_to_target": int | None,
}
METADATA: dict[str, Any] = {
    "machine": MachineFacts,
    "packages": dict[str, Any],
    "data": DataFacts,
    "shards": ShardFacts,
    "cores": CoreFacts | int,
    "lr": dict[str, float],
    "invocation": str,
    "parameters": int | None,
    "weight_bytes": int | None,
    "crossval": FoldPlace,
    "sweep": SweepFacts,
    "trial": TrialPlace,
    "launch": dict[str, Any],
    "user_files": dict[str, str],
}


def sound_entries(held: dict[str, Any], types: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the entries without those of a wrong type, and the names of these; entries that are not known stay."""
    damaged = [name for name, value in held.items() if name in types and not _fits(types[name], value)]
    return {name: value for name, value in held.items() if name not in damaged}, damaged


def _fits(kind: Any, value: Any) -> bool:
    try:
        _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
