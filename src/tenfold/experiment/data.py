"""Section [data]: the data."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tenfold.common.catalog import SOURCES
from tenfold.experiment.python_objects import NameOrObject, check_name
from tenfold.experiment.section import Section
from tenfold.experiment.values import Count, Fraction, NonNegative, Options, TakesList


class Data(Section):
    """The data set, and how it is split into train, validation and test."""

    name: NameOrObject = "mnist"
    """A built-in data set (digits, mnist, fashion-mnist), "package.module:callable", or the data themselves."""
    test_fraction: Fraction | None = None
    """Share of all samples kept for testing. Default: the data set's own test part, or 0.2 if it has none."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training samples held out for validation; with 0, the test part is watched during training."""
    stratify: bool = True
    """Keep the proportions of the classes in every part."""
    split_seed: NonNegative = 0
    """Seed of the split; separate from `seed`, so that runs with different seeds use the same parts."""
    limit: Count | None = None
    """Use at most this many samples of each part, for a quick test."""
    groups: Annotated[NameOrObject | None, TakesList(lambda groups: groups)] = None
    """The group of each training sample, as an array or "package.module:callable"; no group is in two parts."""
    distribute: Literal["each", "scatter"] = "each"
    """Under a launcher: every rank reads the data by itself, or rank 0 reads them and sends each rank its share."""
    loader_workers: NonNegative = 0
    """Processes that load batches; 0 loads them where the training runs, fastest for data in memory."""
    options: Options = {}
    """Keyword arguments of your own callable."""

    _known = field_validator("name")(lambda name: check_name(name, "data set", SOURCES))
