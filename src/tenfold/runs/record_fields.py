"""The fields of a run's metadata and result, and their types, which are checked where a record is read.

Anybody who can write to a store can write a record with a checksum that is right and values that are not. Fields that
are not listed here are not checked; an engine may add its own.
"""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Numbers = dict[str, float | None]
"""Numbers by name; None where there is none."""


class _Lr(TypedDict):
    base: float
    scale: float


class _Data(TypedDict):
    name: str
    shape: list[int] | dict[str, Any]
    classes: int | None
    train: int
    validation: NotRequired[int]
    test: NotRequired[int]
    outputs: NotRequired[int | None]
    fingerprint: NotRequired[str]
    notes: NotRequired[list[str]]
    features: NotRequired[list[str]]
    class_names: NotRequired[list[str]]
    loss_unit: NotRequired[float | list[Any]]


class _Shards(TypedDict):
    kind: str
    samples: list[int]
    classes: list[list[int]] | None
    once: bool | None


class _Memory(TypedDict, total=False):
    total: int
    available: int
    limit: int | None


class _Cpu(TypedDict, total=False):
    model: str
    logical: int | None
    physical: int | None
    usable: str
    usable_physical: int
    layout: list[list[list[int]]]
    quota: float | None
    budget: int


class _Machine(TypedDict, total=False):
    host: str
    cpu: _Cpu
    memory: _Memory
    gpus: list[dict[str, Any]]
    torch: dict[str, Any]
    packages: dict[str, str]


class _Cores(TypedDict, total=False):
    policy: str
    workers: list[list[int]]
    note: str


class _Launch(TypedDict, total=False):
    launcher: str
    name: str
    hosts: dict[str, list[int]]


class _FoldPlace(TypedDict):
    parent: int
    fold: int
    repeat: int
    node: int


class _TrialPlace(TypedDict):
    parent: int
    number: int
    values: dict[str, Any]


class _SweepPlan(TypedDict):
    space: dict[str, str]
    objective: str
    lower: bool
    part: str
    trials: int
    sampler: NotRequired[str]
    prune: NotRequired[bool]


class _ScriptFile(TypedDict):
    path: str
    module: bool
    arguments: list[str]
    digest: str


class Metadata(TypedDict, total=False):
    """Machine, packages, command line, code version and data of a run."""

    machine: _Machine
    packages: dict[str, str]
    command: str
    code: str
    user_files: dict[str, str]
    asked: dict[str, Any]
    parameters: int
    weight_bytes: int
    lr: _Lr
    data: _Data
    shards: _Shards
    cores: _Cores | int
    executor: str
    launch: _Launch
    crossval: _FoldPlace
    trial: _TrialPlace
    sweep: _SweepPlan
    script: _ScriptFile
    invocation: str
    stacked: int


class _Lost(TypedDict):
    worker: int
    why: str
    left: int
    epoch: int
    step: NotRequired[int | None]
    joined: NotRequired[int | None]


class _Load(TypedDict):
    before: float
    after: float
    cores: int | None


class _FoldEntry(TypedDict):
    fold: int
    repeat: int
    node: int
    run: int | None
    status: Literal["finished", "failed"]
    error: str
    metrics: dict[str, Numbers]
    seconds: float
    began: float
    ended: float
    cores: list[int]
    threads: int
    train_samples: int
    validation_samples: int


class _FoldResult(TypedDict, total=False):
    metrics: dict[str, Numbers]
    began: float
    ended: float
    cores: list[int]
    threads: int


class _Score(TypedDict):
    value: float | None
    curve: list[float]


class _SweepResult(TypedDict, total=False):
    best: int | None
    importance: dict[str, float]
    asked: dict[str, dict[str, Any]]
    wanted: int


class _Summary(TypedDict):
    mean: float | None
    std: float | None
    low: float | None
    high: float | None


class _Combined(TypedDict):
    metrics: Numbers
    fold: NotRequired[int]


class Result(TypedDict, total=False):
    """How a run came out."""

    part: str | None
    metrics: Numbers
    seconds: float | None
    clock: Literal["measured", "predicted"]
    interval: Annotated[list[float | None], Field(min_length=2, max_length=2)] | None
    times: Numbers
    epochs: int
    steps: int
    samples: int
    samples_per_second: float | None
    bytes_moved: float
    peak_memory: list[int | None]
    workers: int
    threads: int
    lost: list[_Lost]
    lost_rank: int
    best_epoch: int | None
    stopped_early: bool
    stopped_by: str
    steps_to_target: int
    seconds_to_target: float | None
    start_copy_seconds: FiniteFloat
    total_seconds: FiniteFloat
    listening_seconds: FiniteFloat
    energy_joules: FiniteFloat
    first_in_process: bool
    diverged: bool
    problem: str
    load: _Load
    calibrated: bool
    calibration_load: float | None
    machine_speed: FiniteFloat
    reasons: list[str]
    warnings: list[str]
    simulated_in: FiniteFloat
    baseline_seconds: FiniteFloat
    speedup: FiniteFloat
    ranks: list[Numbers]
    operations: dict[str, Numbers]
    cpu_seconds: FiniteFloat
    mode: str
    folds: list[_FoldEntry]
    spread: dict[str, dict[str, _Summary]]
    models: dict[str, _Combined]
    failed: list[str]
    crossval: _FoldResult
    trial: _Score
    sweep: _SweepResult


FIELDS: dict[str, Any] = {"metadata": Metadata, "result": Result}


@cache
def _adapter(column: str) -> TypeAdapter[Any]:
    return TypeAdapter(FIELDS[column])


def wrong_field(column: str, values: dict[str, Any]) -> str:
    """Return what is wrong with the first value of a column that has another type than is recorded; "" if none has."""
    if column not in FIELDS:
        return ""
    try:
        _adapter(column).validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name, problem = ".".join(map(str, first["loc"])), first["msg"]
        return f"{name} is missing" if first["type"] == "missing" else f"{name}: {problem}"
    return ""
