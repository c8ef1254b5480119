"""Load a built-in data set or the user's own data, and split it into train, validation and test."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from tenfold.common import PARTS
from tenfold.common.files import names_data_file
from tenfold.common.imports import resolve, warn_user
from tenfold.data.dataset_part import NOT_NAMED, Collate, Columns, DatasetPart, split_sample, with_loader
from tenfold.data.files import read_file
from tenfold.data.part import NO_LABEL, Part, Splits, SubsetPart, Tensors, shape_of
from tenfold.data.sources import SOURCES, contents
from tenfold.data.splitting import split
from tenfold.data.streams import StreamPart, is_stream, with_lengths
from tenfold.data.tables import KnownData, TableEncoder, columns_of, is_frame, is_series, series_values
from tenfold.data.user_datasets import (
    PLAIN_VALUES,
    ValueRules,
    as_tensor,
    check_targets,
    first_sample,
    holds_words,
    is_array,
    is_dataset,
    part_from_arrays,
    part_from_dataset,
    part_from_stream,
)
from tenfold.errors import DataError
from tenfold.experiment.experiment import fields_of_loader, is_loader
from tenfold.registry import suggest


def load(
    name_or_object: Any,
    *,
    options: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    stratify: bool = True,
    split_seed: int = 0,
    limit: int | None = None,
    epoch_samples: int | None = None,
    groups: Any = None,
    loader_workers: int = 0,
    loader: Literal["auto", "dataloader"] = "auto",
    columns: Columns = NOT_NAMED,
    collate: Callable[..., Any] | None = None,
    standardize: bool | None = None,
    standardize_targets: bool = True,
    rules: ValueRules = PLAIN_VALUES,
) -> Splits:
    """Load a data set and divide it into train, validation and test.

    `name_or_object` is the name of a built-in data set, "package.module:callable", or any object that `as_splits`
    accepts; `options` are passed to a callable. See `split` for the division into parts and for `groups`.
    With `loader_workers` above 0 or `loader="dataloader"`, samples are read through a DataLoader; otherwise tensors are
    indexed directly, which is faster. `standardize` (default: for tables) applies to the inputs and, unless
    `standardize_targets` is false, to the targets of a regression. `epoch_samples` is the length of an epoch of a
    stream.
    """
    whole = as_splits(name_or_object, options, columns=columns, collate=collate, rules=rules)
    whole = whole.to("cpu", rules.dtype)
    if rules.classes not in (None, whole.classes):
        kind_of_targets = "numbers as targets" if whole.classes is None else f"{whole.classes} classes"
        raise DataError(f"data.classes = {rules.classes}, but the data have {kind_of_targets}")
    streams = any(isinstance(part, StreamPart) for part in whole.parts.values())
    if loader_workers and streams:
        raise DataError(
            f"data.loader_workers = {loader_workers}: a stream (iterable-style Dataset) is read where the training "
            "runs; set it to 0"
        )
    parts = split(
        with_lengths(whole, epoch_samples, limit) if streams or epoch_samples is not None else whole,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        stratify=stratify,
        seed=split_seed,
        limit=limit,
        groups=groups,
    )
    if parts.fit is not None:
        parts = replace(parts.fit(parts), fit=None).to("cpu", rules.dtype)
    if standardize is None:
        standardize = bool(parts.features)
    targets = standardize and standardize_targets and has_numbers_to_scale(parts)
    if standardize or parts.has_missing:
        parts = with_scaling(parts, inputs=standardize, targets=targets)
    if not (isinstance(name_or_object, str) and name_or_object in SOURCES):
        warn_if_unscaled(parts)
    if not loader_workers and loader == "auto":
        return parts
    return parts.with_each(lambda part: with_loader(part, loader_workers))


LARGE = 20.0
"""Inputs with a root mean square above this train poorly with common learning rates."""
LARGE_TARGET = 100.0
"""Regression targets with a root mean square above this are learned poorly, because outputs start near 0."""
MOST_SAMPLES = 10_000
"""Maximum number of samples used to check whether inputs are scaled."""


def with_scaling(splits: Splits, *, inputs: bool = False, targets: bool = False) -> Splits:
    """Return the splits with the means and deviations of the training part that a network uses for standardization.

    `inputs` and `targets` select what is standardized. Means and deviations are per channel for images, otherwise per
    feature. Missing inputs (NaN) are ignored and replaced by the mean; if inputs are only filled in and not
    standardized, the deviation is empty.
    """
    scaling: dict[str, Tensor] = {}
    if inputs or splits.has_missing:
        mean, deviation = _moments(_inputs(splits.train))
        scaling |= {"mean": mean, "deviation": deviation if inputs else torch.empty(0)}
    if targets and (numbers := splits.train.targets) is not None:
        scaling["target_mean"], scaling["target_deviation"] = _moments(numbers)
    unit = scaling.get("target_deviation") if splits.loss_unit is None else splits.loss_unit
    return replace(splits, scaling=scaling or None, loss_unit=unit)


def with_same_scaling(splits: Splits) -> Splits:
    """Recompute the means and deviations for a new training part; splits without any are returned unchanged."""
    if splits.scaling is None:
        return splits
    inputs = "deviation" in splits.scaling and splits.scaling["deviation"].numel() > 0
    return with_scaling(splits, inputs=inputs, targets="target_mean" in splits.scaling)


def has_numbers_to_scale(splits: Splits) -> bool:
    """Return whether the targets are regression targets in memory."""
    targets = splits.train.targets
    return targets is not None and targets.is_floating_point() and splits.classes is None and not splits.multi_label


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation over all samples, ignoring missing values; a deviation of 0 becomes 1."""
    samples = (0, 2, 3) if values.ndim == 4 else (0,)
    is_number = ~torch.isnan(values)
    count = is_number.sum(samples, keepdim=True).clamp(min=1)
    mean = torch.where(is_number, values, 0).double().sum(samples, keepdim=True) / count
    square = torch.where(is_number, (values - mean).square(), 0).sum(samples, keepdim=True) / count
    deviation = torch.where(square > 0, square.sqrt(), 1.0)
    return mean[0].to(values.dtype).cpu(), deviation[0].to(values.dtype).cpu()


def warn_if_unscaled(splits: Splits) -> None:
    """Warn if the inputs or targets of the training part are so large that scaling them would help."""
    part = splits.train
    if not isinstance(part, Tensors):
        return
    scaling = splits.scaling or {}
    standardized = scaling.get("deviation", torch.empty(0)).numel() > 0
    if not standardized and isinstance(part.x, Tensor) and part.x.is_floating_point():
        some = part.x[:MOST_SAMPLES].reshape(min(len(part), MOST_SAMPLES), -1)
        sizes = some.square().nanmean(0).sqrt()
        if bool((sizes > LARGE).any()):
            _warn("inputs", f"up to {float(sizes.max()):.2g}", "set standardize = true")
    if "target_mean" in scaling or not part.y.is_floating_point():
        return
    if (size := float(part.y[:MOST_SAMPLES].square().mean().sqrt())) > LARGE_TARGET:
        _warn("targets", f"{size:.2g}", "set standardize = true, or for a loss of your own divide them by a constant")


def _warn(what: str, size: str, advice: str) -> None:
    text = f"{what} are not scaled: their root mean square is {size}, where about 1 trains best; {advice}"
    warn_user(text)


def _inputs(part: Part) -> Tensor:
    whole, rows = (part.part, part.indices) if isinstance(part, SubsetPart) else (part, None)
    if not isinstance(whole, Tensors) or not isinstance(whole.x, Tensor) or not whole.x.is_floating_point():
        raise DataError(
            "data.standardize needs one tensor or array of floats as input; with several inputs, tokens or a Dataset, "
            "scale the inputs in your model or Dataset"
        )
    return whole.x if rows is None else whole.x.index_select(0, rows.to(whole.device))


FORMS = (
    "data should be a built-in name, a file or folder, a pair (x, y) of tensors or arrays (x may be a tuple or dict of "
    "several), inputs x alone, a dict of columns, a DataFrame, a Dataset, (train, test) or (train, validation, test) "
    "of those, a dict with the keys train, validation and test, or a callable (also as 'package.module:callable') that "
    "returns one of these"
)
_NAMES = {1: ("train",), 2: ("train", "test"), 3: PARTS}
_MANY_CLASSES = 1000


def as_splits(
    data: Any,
    options: Mapping[str, Any] | None = None,
    *,
    columns: Columns = NOT_NAMED,
    collate: Callable[..., Any] | None = None,
    trained_on: KnownData | None = None,
    rules: ValueRules = PLAIN_VALUES,
) -> Splits:
    """Return built-in data or the user's own data, in their given parts.

    Accepted are the name of a built-in data set or a file, `(x, y)` of tensors or arrays, where x may be a tuple or
    dict of several inputs, x alone, a dict of columns, a Dataset, two or three of those as (train, test) or (train,
    validation, test) or in a dict, and a callable or "package.module:callable" that returns any of these when called
    with `options`. `columns` names the inputs and the target among the keys of dicts; `collate` makes a batch of a
    Dataset's samples. `trained_on` describes the table or the images that a model was trained on, to read similar data;
    `rules` define valid labels. Data that are already `Splits` are returned unchanged. Floats are converted to the
    dtype of the rules, labels to int64, uint8 inputs (images) to floats divided by 255, other integers to int64.
    """
    named = isinstance(data, str) and ":" not in data
    if named and (data in SOURCES or not names_data_file(data)):
        if columns != NOT_NAMED or collate is not None:
            raise DataError(f"data '{data}' is built in: target_column, input_columns and collate do not apply")
        return _built_in(data, options)
    name, is_table = "given", is_frame(data)
    class_names: tuple[str, ...] = ()
    if named:
        name = data
        data, is_table, class_names = read_file(data, options or {}, trained_on)
        options = None
    elif isinstance(data, str):
        name, data = data, resolve(data, "data", DataError)
    if callable(data) and not is_dataset(data):
        name = name if name != "given" else getattr(data, "__qualname__", type(data).__qualname__)
        data = _call(data, options or {}, name)
    elif options:
        raise DataError(f"options ({', '.join(options)}) need data to be a callable, not {_kind(data)}")
    if isinstance(data, Splits):
        return data
    for item in [data, *_members(data)]:
        if is_loader(item):
            raise DataError(
                "data is a DataLoader, whose batches cannot be divided among workers; pass its contents instead: "
                f"{fields_of_loader(item)}"
            )
    if is_table or any(_is_frame_or_pair(item) for item in [data, *_members(data)]):
        return _from_tables(name, data, columns, trained_on, rules.dtype)
    given = _by_name(data)
    if words := _encode_words(given, trained_on, columns):
        class_names = words
        rules = replace(rules, classes=len(words))
    parts: dict[str, Part] = {}
    for part, value in given.items():
        parts[part], listed = _part(value, part, Collate(columns, collate), rules)
        rules = replace(rules, classes=listed or rules.classes)
    splits = _described(name, parts, rules, len(class_names) if trained_on else None)
    return replace(splits, class_names=class_names)


def _built_in(name: str, options: Mapping[str, Any] | None) -> Splits:
    source = SOURCES[name]
    if source.make is not None:
        return source.make(options or {})
    assert source.load is not None
    if options:
        raise DataError(f"data '{name}' takes no options, but got {', '.join(options)}")
    train, test = source.load(contents(source)[1] if source.files else {})
    classes = int(train.targets.max()) + 1
    return Splits(name=name, train=train, test=test, shape=tuple(train.x.shape[1:]), classes=classes, outputs=classes)


def _encode_words(given: dict[str, Any], trained_on: KnownData | None, columns: Columns) -> tuple[str, ...]:
    """Replace word labels with numbers in all parts, and return the class names; empty without word labels."""
    pairs = {part: _as_pair(value, columns) for part, value in given.items()}
    words = {part: pair[1] for part, pair in pairs.items() if pair is not None and holds_words(pair[1])}
    if not words:
        return ()
    if list(words) != list(given):
        odd = next(part for part in given if part not in words)
        raise DataError(f"labels of the {next(iter(words))} part are words, those of the {odd} part are not")
    columns_of_words = {part: np.asarray(item).astype(str).reshape(len(item)) for part, item in words.items()}
    names = list(trained_on.class_names) if trained_on is not None and trained_on.class_names else None
    if names is None:
        names = np.unique(np.concatenate(list(columns_of_words.values()))).tolist()
    if len(names) < 2:
        raise DataError(f"all labels are {names[0]!r}; a classification needs two classes or more")
    places = {name: place for place, name in enumerate(names)}
    for part, item in columns_of_words.items():
        if unknown := sorted(set(item.tolist()) - set(names)):
            raise DataError(
                f"the {part} part has the label {unknown[0]!r}, which the model was not trained on; it knows the "
                f"classes {', '.join(names)}"
            )
        inputs = pairs[part]
        assert inputs is not None
        given[part] = (inputs[0], np.array([places[word] for word in item.tolist()], dtype=np.int64))
    return tuple(names)


def _as_pair(value: Any, columns: Columns) -> tuple[Any, Any] | None:
    """Return the inputs and targets of a part given as arrays."""
    if _is_table(value):
        return columns.pick(value)
    return (value[0], value[1]) if _is_pair(value) else None


def _members(data: Any) -> list[Any]:
    """Return the parts of data, or the data themselves."""
    if isinstance(data, Mapping):
        return list(data.values())
    return list(data) if isinstance(data, (tuple, list)) and len(data) in _NAMES else [data]


def _from_tables(name: str, data: Any, columns: Columns, trained_on: KnownData | None, dtype: torch.dtype) -> Splits:
    """Convert a table, or a table per part, into parts with one input matrix each."""
    if isinstance(data, Mapping) and not set(data) <= set(PARTS):
        tables = {"train": dict(data)}
    else:
        if _is_frame_or_pair(data):
            data = {"train": data}
        by_part = data if isinstance(data, Mapping) else dict(zip(_NAMES[len(data)], data, strict=True))
        given = {part: _columns_and_target(item, part) for part, item in by_part.items() if item is not None}
        tables = {part: table for part, (table, _) in given.items()}
        columns = replace(columns, target=columns.target or given["train"][1])
    encoder = TableEncoder(columns, trained_on, dtype)
    encoder.learn(list(tables.values()))
    parts: dict[str, Part] = {part: encoder.part(table, part) for part, table in tables.items()}
    splits = _described(
        name, parts, known_classes=len(encoder.class_names) if trained_on and encoder.class_names else None
    )
    if encoder.class_names is not None:
        splits = replace(splits, classes=len(encoder.class_names), outputs=len(encoder.class_names))
    return replace(
        splits,
        notes=(encoder.describe(),),
        features=tuple(encoder.names),
        class_names=tuple(encoder.class_names or ()),
        has_missing=encoder.has_missing,
    )


def _is_frame_or_pair(data: Any) -> bool:
    """Return whether data are a DataFrame, alone or with a target: a Series, an array or a one-column DataFrame."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not is_frame(data[0]):
        return is_frame(data)
    inputs, target = data
    return is_series(target) or (is_frame(target) and len(target.columns) == 1 < len(inputs.columns))


def _columns_and_target(data: Any, part: str) -> tuple[dict[str, Any], str | None]:
    """Return the columns of a DataFrame, and the name of the target if it is given separately."""
    if is_frame(data):
        return columns_of(data), None
    if not _is_frame_or_pair(data):
        raise DataError(f"the {part} part is {_kind(data)}; with DataFrames, give one for each part, or pairs (x, y)")
    inputs, target = columns_of(data[0]), data[1]
    values = target[target.columns[0]] if is_frame(target) else target
    name = str(getattr(values, "name", None) or "target")
    if len(values) != len(data[0]):
        raise DataError(f"the {part} part has {len(data[0])} rows of x but {len(values)} of y; they should be equal")
    return {key: item for key, item in inputs.items() if key != name} | {name: series_values(values)}, name


def _call(function: Callable[..., Any], options: Mapping[str, Any], name: str) -> Any:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise DataError(f"data '{name}' cannot be called with options {dict(options)}: {error}") from None
    except ValueError:
        pass  # Callables without a signature are simply tried.
    return function(**options)


def _by_name(data: Any) -> dict[str, Any]:
    """Return the values by the names of their parts, determined by position or key."""
    if is_one_part(data) or is_array(data):
        return {"train": data}
    if isinstance(data, Mapping):
        for key in data:
            if key not in PARTS:
                raise DataError(f"data has an unknown key '{key}'; {suggest(str(key), PARTS)}")
        if data.get("train") is None:
            raise DataError("data given as a dict needs the key 'train'")
        return {key: value for key, value in data.items() if value is not None}
    if isinstance(data, (tuple, list)) and len(data) in _NAMES and all(is_one_part(part) for part in data):
        return dict(zip(_NAMES[len(data)], data, strict=True))
    raise DataError(f"{_kind(data)} cannot be used as data; {FORMS}")


def is_one_part(value: Any) -> bool:
    """Return whether a value is one part of data: a pair (x, y), a Dataset, a dict of columns or a list of samples."""
    return _is_pair(value) or is_dataset(value) or _is_table(value) or _is_list_of_samples(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and _is_inputs(value[0]) and _is_targets(value[1])


def _is_inputs(value: Any) -> bool:
    """Return whether a value is an array, or several in a tuple or dict."""
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return is_array(value) or (len(several) > 0 and all(is_array(item) for item in several))


def _is_targets(value: Any) -> bool:
    """Return whether a value is an array, or a list of numbers or words."""
    listed = isinstance(value, list) and len(value) > 0
    return is_array(value) or (listed and all(isinstance(item, (int, float, str, np.generic)) for item in value))


def _is_table(value: Any) -> bool:
    """Return whether a value is a dict of columns rather than a dict of parts."""
    if not isinstance(value, Mapping) or set(value) <= set(PARTS):
        return False
    return len(value) > 1 and all(is_array(item) or isinstance(item, list) for item in value.values())


def _is_list_of_samples(value: Any) -> bool:
    """Return whether a value is a list of samples; a list of up to three items is interpreted as parts."""
    return isinstance(value, list) and len(value) > 3 and isinstance(value[0], (tuple, dict))


def _part(value: Any, name: str, collate: Collate, rules: ValueRules) -> tuple[Part, int | None]:
    """Return a part, and its declared number of classes, if any."""
    if is_stream(value):
        return part_from_stream(value, name, collate, rules)
    if not is_one_part(value) and not is_array(value):
        raise DataError(f"the {name} part is {_kind(value)}; {FORMS}")
    if isinstance(value, TensorDataset) and collate.function is None:
        value = split_sample(value.tensors, collate.columns, f"a sample of the {name} part")
    if not is_array(value) and (_is_list_of_samples(value) or is_dataset(value)):
        return part_from_dataset(value, name, collate, rules)
    if collate.function is not None:
        raise DataError(f"data.collate is for samples of a Dataset, but the {name} part is given as whole arrays")
    if is_array(value):  # without targets: the network learns to return its inputs
        inputs = as_tensor(value, f"x of the {name} part", rules.dtype)
        inputs = part_from_arrays(inputs, torch.zeros(len(inputs)), name, rules).x
        check_targets(inputs, name, rules)
        return Tensors(inputs, inputs), None
    if isinstance(value, Mapping):
        value = collate.columns.pick(value)
    elif collate.columns != NOT_NAMED:
        split_sample(value, collate.columns, f"the {name} part")
    return part_from_arrays(value[0], value[1], name, rules), None


def _described(
    name: str, parts: dict[str, Part], rules: ValueRules = PLAIN_VALUES, known_classes: int | None = None
) -> Splits:
    """Check that the parts are consistent, and return them with the metadata that a model needs."""
    samples = {part: first_sample(value) for part, value in parts.items()}
    shapes = {part: shape_of(x) for part, (x, _) in samples.items()}
    read = [part for part in parts.values() if isinstance(part, DatasetPart | StreamPart)]
    varying = any(part.collate and part.collate.function for part in read)
    widths = {part: y.numel() if y.is_floating_point() else None for part, (_, y) in samples.items()}
    for part in parts:
        if shapes[part] != shapes["train"] and not varying:
            raise DataError(
                f"samples of the {part} part have shape {shapes[part]}, those of train {shapes['train']}; "
                f"they should be the same"
            )
        if widths[part] != widths["train"]:
            raise DataError(
                f"the {part} part has {_goal(widths[part])}, train has {_goal(widths['train'])}; "
                f"they should be the same"
            )
    width = widths["train"]
    classes = (rules.classes or known_classes or _classes(parts, rules)) if width is None else None
    targets = parts["train"].targets
    several = targets is not None and targets.dim() == 2 and targets.shape[1] > 1
    multi_label = targets is not None and several and bool((targets.square() == targets).all())
    whole: dict[str, Any] = dict(parts, multi_label=multi_label)
    return Splits(
        name=name,
        **whole,
        shape=shapes["train"],
        classes=classes,
        outputs=classes or width or 1,
        labels_per_sample=1.0 if classes is None or multi_label else _labels_per_sample(targets, samples["train"][1]),
    )


def _labels_per_sample(targets: Tensor | None, first: Tensor) -> float:
    """Return the mean number of labels per sample; if targets are unknown, the number for the first sample."""
    if targets is None:
        return float((first != NO_LABEL).sum())
    return 1.0 if targets.dim() == 1 else float((targets != NO_LABEL).sum()) / len(targets)


def _classes(parts: dict[str, Part], rules: ValueRules) -> int:
    """Return the number of classes; a single class is an error."""
    labels = {name: part.targets for name, part in parts.items() if part.targets is not None}
    ranges = {name: part.label_range for name, part in parts.items() if isinstance(part, DatasetPart)}
    many = {name: some for name, some in ranges.items() if some is not None}
    labels |= many
    classes = max(int(some.max()) for some in labels.values()) + 1
    if not many and classes > max(_MANY_CLASSES, sum(some.numel() for some in labels.values())):
        raise DataError(
            f"the largest label is {classes - 1}, more than there are samples; "
            f"number the classes from 0 up, or give floats as targets of a regression"
        )
    train = labels.get("train")
    if train is not None:
        train = train[train != NO_LABEL]
    if classes <= 1 and rules.any_integer:
        return max(2, 1 - min(int(some.min()) for some in labels.values()))
    if classes == 1 and train is not None and len(train):
        raise DataError(
            "all samples of the train part have the label 0; a classification needs two classes or more, a regression "
            "needs floats as targets"
        )
    return classes


def _goal(width: int | None) -> str:
    return "labels" if width is None else f"float targets of width {width}"


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inside = ", ".join(type(item).__name__ for item in value[:4])
        return f"a {type(value).__name__} of {len(value)} ({inside}{', ...' if len(value) > 4 else ''})"
    return f"an object of type {type(value).__name__}"
