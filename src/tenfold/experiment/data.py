"""Section [data]: the data."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tenfold.common.catalog import SOURCES
from tenfold.experiment.python_objects import NameOrObject, PythonObject, check_name
from tenfold.experiment.section import Section
from tenfold.experiment.values import AsTuple, Count, Fraction, NonNegative, Options, TakesList, Text


class Data(Section):
    """The data set, and how it is split into train, validation and test."""

    name: NameOrObject = "mnist"
    """A built-in data set (digits, mnist, fashion-mnist, tweets, speech), a file (.csv, .parquet, .npy, .npz), a folder
    of images by class, "package.module:callable", or the data themselves."""
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
    target_column: Text | None = None
    """The column of a table, or the key of a dict, that is to be predicted. Default: labels, label, targets, target, y
    or class, if there is one."""
    input_columns: Annotated[tuple[Text, ...] | None, AsTuple] = None
    """The columns or keys that the network is given; several keys are its keyword arguments. Default: all others."""
    standardize: bool = False
    """Subtract the mean of each input and divide by its deviation, both of the training part, in a cross-validation of
    each fold's. They are kept with the weights: a trained network takes inputs as they were given."""
    collate: NameOrObject | None = None
    """Makes a batch of a list of a Dataset's samples, such as samples of different length; a function or
    "package.module:callable". Default: samples are stacked."""
    distribute: Literal["each", "scatter"] = "each"
    """Under a launcher: every rank reads the data by itself, or rank 0 reads them and sends each rank its share."""
    loader_workers: NonNegative = 0
    """Processes that load batches; 0 loads them where the training runs, fastest for data in memory."""
    options: Options = {}
    """Keyword arguments of your own callable, or options of the data set: tweets and speech have some."""

    @field_validator("collate")
    @classmethod
    def _callable(cls, collate: Any) -> Any:
        if isinstance(collate, PythonObject) and not callable(collate.value):
            raise ValueError(f"should be a function of a list of samples, not a {collate.name}")
        return collate

    _known = field_validator("name")(lambda name: check_name(name, "data set", SOURCES))
