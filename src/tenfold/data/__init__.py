"""Data: built-in data sets and the user's own, their parts, and how these are divided among replicas and folds."""

from typing import TYPE_CHECKING

from tenfold.common.imports import lazy_attributes

if TYPE_CHECKING:
    from tenfold.data.dataset_part import DatasetPart, join_parts
    from tenfold.data.loading import load
    from tenfold.data.part import Part, Splits, SubsetPart, Tensors
    from tenfold.data.sources import SOURCES, available, get, showing_downloads, where
    from tenfold.data.splitting import Fold, batch_sizes, batches, make_folds, make_shards, order

_NAMES = {
    "dataset_part": ("DatasetPart", "join_parts"),
    "loading": ("load",),
    "part": ("Part", "Splits", "SubsetPart", "Tensors"),
    "splitting": ("Fold", "batch_sizes", "batches", "make_folds", "make_shards", "order"),
    "sources": ("SOURCES", "available", "get", "showing_downloads", "where"),
}

if not TYPE_CHECKING:  # listing and fetching data sets should not wait for torch
    __getattr__ = lazy_attributes(
        __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
    )
