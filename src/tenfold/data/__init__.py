"""Data: built-in data sets and the user's own, their parts, and how these are divided among replicas and folds."""

from typing import TYPE_CHECKING

from tenfold.common.imports import lazy_attributes

if TYPE_CHECKING:
    from tenfold.data.dataset_part import DatasetPart, join_parts
    from tenfold.data.folds import Fold, make_folds
    from tenfold.data.loading import load
    from tenfold.data.part import Part, Splits, SubsetPart, Tensors
    from tenfold.data.shards import batch_sizes, batches, make_shards, order
    from tenfold.data.sources.fetch import FetchProgress
    from tenfold.data.sources.locate import available, get, where
    from tenfold.data.sources.source import SOURCES

__all__ = [
    "SOURCES",
    "DatasetPart",
    "FetchProgress",
    "Fold",
    "Part",
    "Splits",
    "SubsetPart",
    "Tensors",
    "available",
    "batch_sizes",
    "batches",
    "get",
    "join_parts",
    "load",
    "make_folds",
    "make_shards",
    "order",
    "where",
]

_NAMES = {
    "dataset_part": ("DatasetPart", "join_parts"),
    "folds": ("Fold", "make_folds"),
    "loading": ("load",),
    "part": ("Part", "Splits", "SubsetPart", "Tensors"),
    "shards": ("batch_sizes", "batches", "make_shards", "order"),
    "sources.source": ("SOURCES",),
    "sources.fetch": ("FetchProgress",),
    "sources.locate": ("available", "get", "where"),
}

if not TYPE_CHECKING:  # listing and fetching data sets should not wait for torch
    __getattr__ = lazy_attributes(
        __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
    )
