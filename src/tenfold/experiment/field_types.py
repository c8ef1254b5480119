"""The types of an experiment's fields as keyword arguments, for editors and type checkers.

Made from the fields by `python tests/test_docs.py`; do not change it by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

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
    groups: Any
    target_column: str | None
    input_columns: Sequence[str] | None
    standardize: bool
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
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    loss: Any
    metrics: Any
    patience: int | None
    target: float | None
    evaluate_every: float
    seed: int
    log_every: int
    save_predictions: bool
    workers: int
    strategy: Literal[
        "allreduce",
        "butterfly",
        "ring",
        "hopping-ring",
        "gossip",
        "hierarchical",
        "parameter-server",
        "none",
        "downpour",
        "easgd",
        "ad-psgd",
    ]
    strategy_options: Table
    sync_every: int | Literal["epoch"] | None
    local_after: int
    overlap: bool
    average: Literal["auto", "weights", "gradients"]
    outer: Literal["none", "bmuf", "slowmo", "diloco"]
    outer_options: Table
    compression: Literal["none", "bf16", "int8", "topk", "1bit"]
    compression_options: Table
    lr_scaling: Literal["auto", "none", "linear", "sqrt"]
    optimizer_state: Literal["auto", "local", "average", "reset"]
    shards: Literal["iid", "contiguous", "label-skew", "fractions"]
    skew: float
    fractions: Sequence[float] | None
    folds: int | None
    fold_kind: Literal["auto", "plain", "stratified", "group"]
    fold_repeats: int
    fold_mode: Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "fused"]
    device: str
    threads: int | None
    pin: str
    oversubscribe: bool
    engine: Literal["auto", "serial", "processes", "fused", "launched", "virtual"]
    transport: Literal["auto", "shared-memory", "torch", "mpi"]
    on_failure: Literal["end", "continue"]
    replacements: int
    stall_after: float | None
    fused: Literal["auto", "vmap", "loop"]
    cluster: Any
    link: Any
    training: Any
    division: Any
    machine: Any


class Grid(TypedDict, total=False):
    """Every field with one value, or with several as a dimension of a grid."""

    name: Sequence[str] | str
    model: Any
    hidden: Sequence[Sequence[int] | None] | Sequence[int] | None
    activation: (
        Sequence[Literal["relu", "sigmoid", "tanh", "gelu"] | None] | Literal["relu", "sigmoid", "tanh", "gelu"] | None
    )
    dropout: Sequence[float | None] | float | None
    batchnorm: Sequence[bool | None] | bool | None
    model_options: Sequence[Table] | Table
    data: Any
    test_fraction: Sequence[float | None] | float | None
    validation_fraction: Sequence[float] | float
    stratify: Sequence[bool] | bool
    split_seed: Sequence[int] | int
    limit: Sequence[int | None] | int | None
    groups: Any
    target_column: Sequence[str | None] | str | None
    input_columns: Sequence[Sequence[str] | None] | Sequence[str] | None
    standardize: Sequence[bool] | bool
    collate: Any
    distribute: Sequence[Literal["each", "scatter"]] | Literal["each", "scatter"]
    loader_workers: Sequence[int] | int
    loader: Sequence[Literal["auto", "dataloader"]] | Literal["auto", "dataloader"]
    data_options: Sequence[Table] | Table
    epochs: Sequence[int] | int
    batch_size: Sequence[int | None] | int | None
    optimizer: Any
    lr: Sequence[float | None] | float | None
    momentum: Sequence[float] | float
    nesterov: Sequence[bool] | bool
    weight_decay: Sequence[float] | float
    optimizer_options: Sequence[Table] | Table
    schedule: Any
    schedule_options: Sequence[Table] | Table
    warmup: Sequence[float | None] | float | None
    clip: Sequence[float | None] | float | None
    accumulate: Sequence[int] | int
    activation_checkpointing: Sequence[bool | Sequence[str]] | bool | Sequence[str]
    ema: Sequence[float | None] | float | None
    precision: Sequence[Literal["fp32", "tf32", "bf16", "fp16"]] | Literal["fp32", "tf32", "bf16", "fp16"]
    loss: Any
    metrics: Any
    patience: Sequence[int | None] | int | None
    target: Sequence[float | None] | float | None
    evaluate_every: Sequence[float] | float
    seed: Sequence[int] | int
    log_every: Sequence[int] | int
    save_predictions: Sequence[bool] | bool
    workers: Sequence[int] | int
    strategy: (
        Sequence[
            Literal[
                "allreduce",
                "butterfly",
                "ring",
                "hopping-ring",
                "gossip",
                "hierarchical",
                "parameter-server",
                "none",
                "downpour",
                "easgd",
                "ad-psgd",
            ]
        ]
        | Literal[
            "allreduce",
            "butterfly",
            "ring",
            "hopping-ring",
            "gossip",
            "hierarchical",
            "parameter-server",
            "none",
            "downpour",
            "easgd",
            "ad-psgd",
        ]
    )
    strategy_options: Sequence[Table] | Table
    sync_every: Sequence[int | Literal["epoch"] | None] | int | Literal["epoch"] | None
    local_after: Sequence[int] | int
    overlap: Sequence[bool] | bool
    average: Sequence[Literal["auto", "weights", "gradients"]] | Literal["auto", "weights", "gradients"]
    outer: Sequence[Literal["none", "bmuf", "slowmo", "diloco"]] | Literal["none", "bmuf", "slowmo", "diloco"]
    outer_options: Sequence[Table] | Table
    compression: (
        Sequence[Literal["none", "bf16", "int8", "topk", "1bit"]] | Literal["none", "bf16", "int8", "topk", "1bit"]
    )
    compression_options: Sequence[Table] | Table
    lr_scaling: Sequence[Literal["auto", "none", "linear", "sqrt"]] | Literal["auto", "none", "linear", "sqrt"]
    optimizer_state: (
        Sequence[Literal["auto", "local", "average", "reset"]] | Literal["auto", "local", "average", "reset"]
    )
    shards: (
        Sequence[Literal["iid", "contiguous", "label-skew", "fractions"]]
        | Literal["iid", "contiguous", "label-skew", "fractions"]
    )
    skew: Sequence[float] | float
    fractions: Sequence[Sequence[float] | None] | Sequence[float] | None
    folds: Sequence[int | None] | int | None
    fold_kind: (
        Sequence[Literal["auto", "plain", "stratified", "group"]] | Literal["auto", "plain", "stratified", "group"]
    )
    fold_repeats: Sequence[int] | int
    fold_mode: (
        Sequence[Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "fused"]]
        | Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "fused"]
    )
    device: Sequence[str] | str
    threads: Sequence[int | None] | int | None
    pin: Sequence[str] | str
    oversubscribe: Sequence[bool] | bool
    engine: (
        Sequence[Literal["auto", "serial", "processes", "fused", "launched", "virtual"]]
        | Literal["auto", "serial", "processes", "fused", "launched", "virtual"]
    )
    transport: (
        Sequence[Literal["auto", "shared-memory", "torch", "mpi"]] | Literal["auto", "shared-memory", "torch", "mpi"]
    )
    on_failure: Sequence[Literal["end", "continue"]] | Literal["end", "continue"]
    replacements: Sequence[int] | int
    stall_after: Sequence[float | None] | float | None
    fused: Sequence[Literal["auto", "vmap", "loop"]] | Literal["auto", "vmap", "loop"]
    cluster: Any
    link: Any
    training: Any
    division: Any
    machine: Any
