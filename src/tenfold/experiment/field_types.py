"""The types of an experiment's fields as keyword arguments, for editors and type checkers.

Made from the fields by `python tools/generate_fields.py`; do not change it by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

T = TypeVar("T")
OneOrSeveral: TypeAlias = Sequence[T] | T
Table = Mapping[str, Any]


class Fields(TypedDict, total=False):
    """Every field of an experiment by its short name."""

    name: str
    model: Any
    hidden: Sequence[int] | None
    activation: Literal["relu", "sigmoid", "tanh", "gelu"] | None
    dropout: float | None
    batchnorm: bool | None
    model_options: Table
    data: Any
    test_fraction: float | None
    validation_fraction: float
    stratify: bool
    split_seed: int
    limit: int | None
    epoch_samples: int | None
    groups: Any
    target_column: str | None
    input_columns: Sequence[str] | None
    classes: int | None
    standardize: bool | None
    collate: Any
    distribute: Literal["each", "scatter"]
    loader_workers: int
    loader: Literal["auto", "dataloader"]
    data_options: Table
    epochs: int
    batch_size: int | None
    optimizer: Any
    lr: float | None
    momentum: float
    nesterov: bool
    weight_decay: float
    optimizer_options: Table
    schedule: Any
    schedule_options: Table
    warmup: float | None
    clip: float | None
    accumulate: int
    activation_checkpointing: bool | Sequence[str]
    ema: float | None
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"]
    compile: bool | Literal["auto"]
    loss: Any
    metrics: Any
    lower_is_better: bool | None
    patience: int | None
    target: float | None
    evaluate_every: float
    seed: int
    log_every: int
    save_predictions: bool
    workers: int | Literal["auto"]
    divide: Literal["data", "layers", "neurons"]
    stages: int | Sequence[str] | None
    micro_batches: int | None
    pipeline_schedule: Literal["gpipe", "1f1b"]
    strategy: Any
    strategy_options: Table
    sync_every: int | Literal["epoch"] | None
    local_after: int
    average: Literal["auto", "weights", "gradients"]
    outer: Any
    outer_options: Table
    compression: Any
    compression_options: Table
    lr_scaling: Literal["auto", "none", "linear", "sqrt"]
    optimizer_state: Literal["auto", "local", "average", "reset"]
    shards: Literal["iid", "contiguous", "label-skew", "fractions"]
    skew: float
    fractions: Sequence[float] | None
    folds: int | None
    fold_kind: Literal["auto", "plain", "stratified", "group"]
    fold_repeats: int
    fold_mode: Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "stacked"]
    device: str
    threads: int | None
    pin: str
    oversubscribe: bool
    engine: Any
    transport: Any
    on_failure: Literal["end", "continue"]
    replacements: int
    stall_after: float | None
    stacking: Literal["auto", "vmap", "loop"]
    cluster: Any
    link: Any
    training: Any
    parallel: Any
    machine: Any


class Grid(TypedDict, total=False):
    """Every field with one value, or with several as a dimension of a grid."""

    name: OneOrSeveral[str]
    model: Any
    hidden: OneOrSeveral[Sequence[int] | None]
    activation: OneOrSeveral[Literal["relu", "sigmoid", "tanh", "gelu"] | None]
    dropout: OneOrSeveral[float | None]
    batchnorm: OneOrSeveral[bool | None]
    model_options: OneOrSeveral[Table]
    data: Any
    test_fraction: OneOrSeveral[float | None]
    validation_fraction: OneOrSeveral[float]
    stratify: OneOrSeveral[bool]
    split_seed: OneOrSeveral[int]
    limit: OneOrSeveral[int | None]
    epoch_samples: OneOrSeveral[int | None]
    groups: Any
    target_column: OneOrSeveral[str | None]
    input_columns: OneOrSeveral[Sequence[str] | None]
    classes: OneOrSeveral[int | None]
    standardize: OneOrSeveral[bool | None]
    collate: Any
    distribute: OneOrSeveral[Literal["each", "scatter"]]
    loader_workers: OneOrSeveral[int]
    loader: OneOrSeveral[Literal["auto", "dataloader"]]
    data_options: OneOrSeveral[Table]
    epochs: OneOrSeveral[int]
    batch_size: OneOrSeveral[int | None]
    optimizer: Any
    lr: OneOrSeveral[float | None]
    momentum: OneOrSeveral[float]
    nesterov: OneOrSeveral[bool]
    weight_decay: OneOrSeveral[float]
    optimizer_options: OneOrSeveral[Table]
    schedule: Any
    schedule_options: OneOrSeveral[Table]
    warmup: OneOrSeveral[float | None]
    clip: OneOrSeveral[float | None]
    accumulate: OneOrSeveral[int]
    activation_checkpointing: OneOrSeveral[bool | Sequence[str]]
    ema: OneOrSeveral[float | None]
    precision: OneOrSeveral[Literal["fp32", "tf32", "bf16", "fp16", "fp64"]]
    compile: OneOrSeveral[bool | Literal["auto"]]
    loss: Any
    metrics: Any
    lower_is_better: OneOrSeveral[bool | None]
    patience: OneOrSeveral[int | None]
    target: OneOrSeveral[float | None]
    evaluate_every: OneOrSeveral[float]
    seed: OneOrSeveral[int]
    log_every: OneOrSeveral[int]
    save_predictions: OneOrSeveral[bool]
    workers: OneOrSeveral[int | Literal["auto"]]
    divide: OneOrSeveral[Literal["data", "layers", "neurons"]]
    stages: OneOrSeveral[int | Sequence[str] | None]
    micro_batches: OneOrSeveral[int | None]
    pipeline_schedule: OneOrSeveral[Literal["gpipe", "1f1b"]]
    strategy: Any
    strategy_options: OneOrSeveral[Table]
    sync_every: OneOrSeveral[int | Literal["epoch"] | None]
    local_after: OneOrSeveral[int]
    average: OneOrSeveral[Literal["auto", "weights", "gradients"]]
    outer: Any
    outer_options: OneOrSeveral[Table]
    compression: Any
    compression_options: OneOrSeveral[Table]
    lr_scaling: OneOrSeveral[Literal["auto", "none", "linear", "sqrt"]]
    optimizer_state: OneOrSeveral[Literal["auto", "local", "average", "reset"]]
    shards: OneOrSeveral[Literal["iid", "contiguous", "label-skew", "fractions"]]
    skew: OneOrSeveral[float]
    fractions: OneOrSeveral[Sequence[float] | None]
    folds: OneOrSeveral[int | None]
    fold_kind: OneOrSeveral[Literal["auto", "plain", "stratified", "group"]]
    fold_repeats: OneOrSeveral[int]
    fold_mode: OneOrSeveral[Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "stacked"]]
    device: OneOrSeveral[str]
    threads: OneOrSeveral[int | None]
    pin: OneOrSeveral[str]
    oversubscribe: OneOrSeveral[bool]
    engine: Any
    transport: Any
    on_failure: OneOrSeveral[Literal["end", "continue"]]
    replacements: OneOrSeveral[int]
    stall_after: OneOrSeveral[float | None]
    stacking: OneOrSeveral[Literal["auto", "vmap", "loop"]]
    cluster: Any
    link: Any
    training: Any
    parallel: Any
    machine: Any
