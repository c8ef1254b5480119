"""Use a trained model: `run.predict`, `run.evaluate`, and exports for other programs."""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tenfold.common import PARTS
from tenfold.common.files import read_regular, replacing
from tenfold.common.imports import optional_module, was_written_here
from tenfold.data import SOURCES, Part, Splits, Tensors
from tenfold.data.dataset_part import TARGET_NAMES, Columns
from tenfold.data.loading import as_splits
from tenfold.data.part import (
    as_input,
    as_inputs,
    change_main_output,
    describe_shape,
    has_several,
    main_output,
    shape_from_record,
    shape_of,
    tree_leaves,
    tree_map,
)
from tenfold.data.tables import KnownData, columns_of, is_frame
from tenfold.data.user_datasets import ValueRules, as_tensor, check_finite, is_array, is_dataset, read_by_loader
from tenfold.engines.prepare import load, python_value
from tenfold.errors import DataError, ExperimentError, ModelError, StoreError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import is_loader
from tenfold.experiment.values import LARGEST_PICKLE, PythonObject, UnrecordedObject
from tenfold.machine.cores import use_threads_that_exist
from tenfold.models.networks import add_scaling, build, scaling_in
from tenfold.registry import MODELS, suggest
from tenfold.runs import Run
from tenfold.runs.store import FOLD, MODEL_PICKLE, SWEEP
from tenfold.training import choose_loss, choose_metrics, evaluation
from tenfold.training.flat_weights import flat_dtype
from tenfold.training.measures import output_kind, takes_any_labels
from tenfold.training.network_call import takes_inputs


def build_model(run: Run) -> nn.Module:
    """Return a run's network with its trained weights; a pickled model is read only if it is trusted."""
    run = with_model(run)
    weights, shapes, model = run.weights, run.metadata["data"], run.experiment.model
    make = partial(build, model, shape_from_record(shapes["shape"]), shapes["outputs"])
    if isinstance(model.name, UnrecordedObject) and (file := _model_pickle(run)).exists():
        content = _read_pickle(file)
        if not run.is_trusted and not was_written_here(content):
            if (network := _from_class_in_main(run, model, make)) is not None:
                return network
            raise ModelError(
                f"the model {model.name} of run {run.id} was given as a Python object and cannot be imported; "
                f"to load the copy in {file.parent.name}, which runs the code in it, use "
                f"tenfold.open_run({run.id}, trust=True), or --trust on the command line; otherwise define its class, "
                "or build the network yourself and call network.load_state_dict(run.weights)"
            )
        try:
            kept = PythonObject.unpickled(content, model.name.name)
        except Exception as error:  # a damaged pickle may raise anything
            raise ModelError(f"{file} cannot be read ({type(error).__name__}: {error})") from error
        make = partial(build, model := model.model_copy(update={"name": kept}), *make.args[1:])
    if isinstance(model.name, str) and (model.name in MODELS or model.name.startswith("torch.nn")):
        try:  # a damaged record may ask for more than there is memory
            with torch.device("meta"):
                _fill(make(seed=0), weights, run, assign=True)
        except ModelError:
            raise
        except Exception as error:  # whatever torch says of such options
            raise ModelError(f"the model of run {run.id} cannot be built from its record: {error}") from None
    return _fill(make(seed=run.experiment.training.seed), weights, run).eval()


def _read_pickle(file: Path) -> bytes:
    try:
        return read_regular(file, LARGEST_PICKLE)
    except Exception as error:
        raise ModelError(f"{file} cannot be read ({type(error).__name__}: {error})") from error


def _from_class_in_main(run: Run, model: Any, make: partial[nn.Module]) -> nn.Module | None:
    """Return the trained network, built from a class of the running script or notebook; None if none fits."""
    network_class = getattr(sys.modules.get("__main__"), model.name.name, None)
    if not (
        isinstance(network_class, type)
        and issubclass(network_class, nn.Module)
        and network_class.__module__ == "__main__"
    ):
        return None
    try:
        network = make.func(model.model_copy(update={"name": PythonObject(network_class)}), *make.args[1:], seed=0)
        return _fill(network, run.weights, run).eval()
    except Exception:  # its arguments are unknown, or it was changed
        return None


def _fill(network: nn.Module, weights: dict[str, Any], run: Run, *, assign: bool = False) -> nn.Module:
    """Load the weights of a run into a network and return it; raise ModelError if they do not fit."""
    floats = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    problem = ""
    if run.experiment.training.precision == "fp64":
        network.double()
    add_scaling(network, scaling_in(weights), change_main_output)
    for name, own in network.state_dict().items():
        kinds = {own.dtype, weights[name].dtype} if name in weights and isinstance(own, torch.Tensor) else set()
        if len(kinds) > 1 and not kinds <= floats:
            problem = f"{name} is of type {weights[name].dtype}, in the model {own.dtype}"
    try:
        if not problem:
            network.load_state_dict(weights, assign=assign)
            return network
    except RuntimeError as error:
        problem = " ".join(str(error).split())
    raise ModelError(f"{run.path / 'model.pt'} does not fit the model of run {run.id}: {problem:.400}") from None


def _model_pickle(run: Run) -> Path:
    """Return the file of a run's model; a fold's model is in the folder of the cross-validation."""
    parent = run.metadata.get("crossval", {}).get("parent")
    return (run.path if parent is None else run.other(parent).path) / MODEL_PICKLE


def with_model(run: Run) -> Run:
    """Return the run whose model to use: for a sweep its best trial, otherwise the run itself."""
    use_threads_that_exist()
    if run.kind == SWEEP:
        from tenfold.reports.sweep import Sweep

        run = Sweep(run).best_run
    if "data" not in run.metadata:
        raise StoreError(f"run {run.id} cannot be used: {run.problem or 'its record has no description of its data'}")
    return run


def predict(run: Run, x: Any, *, probabilities: bool = False) -> Any:
    """Return the predictions of the run's model for samples x, as a tensor if x is a tensor, otherwise as an array.

    Predictions are class indices, 0 or 1 for a single logit, and numbers in regression. With `probabilities`, they
    are the probability of each class, or of 1 for a single logit.
    """
    run = with_model(run)
    training, classes = run.experiment.training, run.metadata["data"]["classes"]
    x = _without_targets(run, x)
    outputs = _outputs(run, x if isinstance(x, Part) else inputs_for(run, x))
    kind = output_kind(training, classes, outputs)
    if probabilities and kind == "numbers":
        raise DataError(f"the model of run {run.id} predicts numbers and has no probabilities; use predict")
    if kind == "classes":
        places_first = outputs.ndim > 2 and outputs.shape[1] != classes == outputs.shape[-1]
        axis = outputs.ndim - 1 if places_first else 1
        predicted = outputs.softmax(axis) if probabilities else outputs.argmax(axis)
    elif kind == "logit":
        predicted = outputs.sigmoid() if probabilities else (outputs > 0).long()
    elif kind == "probability":
        predicted = outputs if probabilities else (outputs > 0.5).long()
    else:
        predicted = outputs
    if predicted.ndim > 1 and predicted.shape[1] == 1 and (predicted.ndim == 2 or kind in ("logit", "probability")):
        predicted = predicted.squeeze(1)
    as_tensors = isinstance(x, Part) or isinstance(tree_leaves(x)[0], Tensor)
    return predicted if as_tensors else predicted.numpy()


def _without_targets(run: Run, x: Any) -> Any:
    """Return the inputs of data in a form that `train` takes: (x, y), a dict with the target, a Dataset, a DataLoader.

    A Dataset, or the Dataset of a DataLoader, becomes a part; any other value is returned unchanged.
    """
    shape = shape_from_record(run.metadata["data"]["shape"])
    if is_loader(x) or is_dataset(x) or (isinstance(x, list) and len(x) > 0 and isinstance(x[0], (tuple, dict))):
        return _as_part(run, x, shape)
    if isinstance(x, (tuple, list)) and len(x) == 2 and is_array(x[1]):
        inputs, targets = x
        several = isinstance(inputs, (tuple, list, dict))
        if several == has_several(shape) and (several or is_array(inputs)) and _are_samples(inputs, targets, shape):
            return inputs
    return x


def _are_samples(inputs: Any, targets: Any, shape: Any) -> bool:
    """Return whether these are inputs and their targets, not the two inputs of a model."""
    first = tree_leaves(inputs)[0]
    if len(np.shape(first)) < 1 or len(first) != len(targets):
        return False
    return has_several(shape) or np.shape(first)[1:] == shape or math.prod(np.shape(first)[1:]) == math.prod(shape)


def _as_part(run: Run, x: Any, shape: Any) -> Part:
    """Read the samples of a Dataset in the same way as the run's own data."""
    section = run.experiment.data
    given, collate = read_by_loader(x)
    columns = Columns(section.input_columns, section.target_column)
    read = as_splits(
        {"train": given},
        columns=columns,
        collate=collate or python_value(section.collate, "collate"),
        rules=ValueRules(dtype=flat_dtype(run.model)),
    )
    if not have_fitting_shape(run, read.shape, shape):
        raise DataError(
            f"the samples have shape {describe_shape(read.shape)}, but the model of run {run.id} takes samples of "
            f"shape {describe_shape(shape)}"
        )
    return read.train


def inputs_for(run: Run, x: Any) -> Any:
    """Return samples x in the form and on the scale that the run's model was trained on."""
    shape = shape_from_record(run.metadata["data"]["shape"])
    if has_several(shape):
        return _several_inputs(run, x, shape)
    features = run.metadata["data"].get("features")
    if features and (is_frame(x) or isinstance(x, dict)):
        x = KnownData(tuple(features)).inputs(columns_of(x) if is_frame(x) else x, "x", flat_dtype(run.model))
    elif features and not isinstance(x, Tensor) and np.asarray(x).dtype.kind == "O":
        raise DataError(
            f"x is a {type(x).__name__}, but the model of run {run.id} was trained on a table; give a DataFrame "
            "or a dict of columns (for one row of a DataFrame: df.iloc[[0]])"
        )
    dtype = flat_dtype(run.model)
    given = as_tensor(x, "x", dtype)
    inputs = _scaled(given, run.metadata["data"].get("name"), dtype)
    if lengths_vary(run) and inputs.ndim == len(shape) + 1:
        shape = tuple(inputs.shape[1:])
    if _without_ones(inputs.shape[1:]) != _without_ones(shape) and inputs.shape[1:] != (math.prod(shape),):
        single = "; a single sample is given as x[None]" if _without_ones(inputs.shape) == _without_ones(shape) else ""
        wanted = ", ".join(["n", *map(str, shape)])
        raise DataError(
            f"x has shape {tuple(given.shape)}, but the model of run {run.id} takes samples of shape {shape}; "
            f"x should have shape ({wanted}){single}"
        )
    if not len(inputs):
        raise DataError("x is empty; it should contain at least one sample")
    fills = features and "mean" in scaling_in(run.weights)  # the network replaces missing values
    check_finite(inputs.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf) if fills else inputs, "x")
    return inputs.reshape(len(inputs), *shape)


def lengths_vary(run: Run) -> bool:
    """Return whether samples may differ in length; the recorded shape is then the shape of the first sample."""
    return run.experiment.data.collate is not None


def have_fitting_shape(run: Run, shape: Any, recorded: Any) -> bool:
    """Return whether samples have the shape that a run's model takes; if lengths vary, only dimensions must agree."""
    if not lengths_vary(run):
        return bool(shape == recorded)
    return bool(_dimensions(shape) == _dimensions(recorded))


def _dimensions(shape: Any) -> Any:
    if not has_several(shape):
        return len(shape)
    return {name: len(item) for name, item in (shape.items() if isinstance(shape, dict) else enumerate(shape))}


def _several_inputs(run: Run, x: Any, shape: Any) -> Any:
    """Return the inputs of a model that takes several, as a tuple or a dict of tensors."""
    dtype = flat_dtype(run.model)
    inputs = as_inputs(tree_map(lambda value: as_tensor(value, "an input in x", dtype), x), dtype)
    inputs, shape = _needed_inputs(run, inputs, shape)
    lengths = {len(leaf) for leaf in tree_leaves(inputs)}
    shapes = tree_map(lambda value: tuple(value.shape[1:]), inputs)
    if not have_fitting_shape(run, shapes, shape) or len(lengths) != 1:
        raise DataError(
            f"x contains inputs of shape {describe_shape(shapes)} for {', '.join(map(str, sorted(lengths)))} samples, "
            f"but the model of run {run.id} takes {describe_shape(shape)}; pass x in the same form as in training"
        )
    return inputs


def _needed_inputs(run: Run, inputs: Any, shape: Any) -> tuple[Any, Any]:
    """Return the inputs that the model takes, and the shapes that they should have.

    A target is dropped. Inputs with defaults in `forward` may be missing, such as the labels for a loss that the
    network computes in training.
    """
    if isinstance(shape, dict) and isinstance(inputs, dict):
        inputs = {name: item for name, item in inputs.items() if name in shape or name not in TARGET_NAMES}
        needed: Any = {name: item for name, item in shape.items() if name in inputs}
    elif isinstance(shape, tuple) and not isinstance(inputs, dict):
        inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
        needed = shape[: len(inputs)]
    else:
        return inputs, shape
    is_shorter = 0 < len(needed) < len(shape)
    return inputs, needed if is_shorter and takes_inputs(run.model, needed) else shape


def _scaled(given: Tensor, name: str | None, dtype: torch.dtype) -> Tensor:
    """Scale inputs as in training; integers for built-in data are raw pixels, as in the files."""
    scale = SOURCES[name].scale if name is not None and name in SOURCES else None
    if scale is not None and (not given.is_floating_point() or bool((given == given.round()).all())):
        return scale(given).to(dtype)
    return as_input(given, dtype)


def _outputs(run: Run, inputs: Any) -> Tensor:
    """Return the main output of the network for all samples, given as a part or as its inputs."""
    samples = inputs if isinstance(inputs, Part) else Tensors(inputs, torch.zeros(len(tree_leaves(inputs)[0])))
    precision = run.experiment.training.precision
    try:
        outputs = evaluation.predict(
            run.model, samples, torch.arange(len(samples)), precision=precision, main_only=True
        )
    except RuntimeError as error:
        if isinstance(inputs, Part):
            raise
        kinds = ", ".join(str(leaf.dtype).removeprefix("torch.") for leaf in tree_leaves(inputs))
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the model of run {run.id} failed on x of type {kinds} and shape "
            f"{describe_shape(shape_of(inputs))}: {reason}"
        ) from error
    return main_output(outputs, "predict")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model, and the data that they were measured on."""

    metrics: dict[str, float]
    part: str
    samples: int


def evaluate(
    run: Run, data: Any = None, *, part: str | None = None, metrics: Any = None, loss: Any = None
) -> Evaluation:
    """Return the loss and the metrics of a run's model on a part of its own data, or on other data."""
    run = with_model(run)
    if part is not None and part not in PARTS:
        raise DataError(f"unknown part '{part}'; {suggest(part, PARTS)}")
    changes = {"metrics": metrics, "loss": loss}
    experiment = run.experiment.replace(**{name: value for name, value in changes.items() if value is not None})
    _check_measures(run, experiment)
    splits = _own_data(run, experiment, part) if data is None else _read_as_recorded(run, experiment, data)
    name, chosen = _choose(splits, part, own=data is None)
    _check_fit(run, splits)
    training, classes = experiment.training, run.metadata["data"]["classes"]
    unit = run.metadata["data"].get("loss_unit")
    loss_of_run = choose_loss(
        training, classes, None if unit is None else torch.tensor(unit, dtype=flat_dtype(run.model))
    )
    measures = loss_of_run, choose_metrics(training, classes)
    return Evaluation(
        metrics=evaluation.evaluate(run.model, chosen, *measures, precision=training.precision),
        part=name,
        samples=len(chosen),
    )


def _own_data(run: Run, experiment: Experiment, part: str | None) -> Splits:
    if "data" in experiment.unrecorded_fields:
        raise DataError(
            f"run {run.id} was trained on data given as Python objects; pass the data: run.evaluate(data=...)"
        )
    if run.kind == FOLD and part in ("train", "validation"):
        raise DataError(f"run {run.id} is a fold; `tenfold show {run.id}` has its metrics on its {part} part")
    return load(experiment, flat_dtype(run.model))


def _read_as_recorded(run: Run, experiment: Experiment, given: Any) -> Splits:
    """Read other data in the same way as a run's own data, divided into the same parts as given.

    Columns and the collate function come from the run's experiment, categories and classes from its metadata.
    """
    section, metadata = experiment.data, run.metadata["data"]
    trained_on = KnownData.of(metadata)
    given, collate = read_by_loader(given)
    is_folder = isinstance(given, str) and Path(given).expanduser().is_dir()
    are_images = is_folder and trained_on is not None and not trained_on.features
    return as_splits(
        given,
        section.options if are_images else None,
        columns=Columns(section.input_columns, section.target_column),
        collate=collate or python_value(section.collate, "collate"),
        trained_on=trained_on,
        rules=ValueRules(metadata["classes"], takes_any_labels(experiment.training), flat_dtype(run.model)),
    )


def _check_measures(run: Run, experiment: Experiment) -> None:
    missing = [name for name in ("loss", "metrics") if name in experiment.unrecorded_fields]
    if missing:
        again = ", ".join(f"{name}=..." for name in missing)
        raise ExperimentError(f"run {run.id} was given Python objects; pass them again: run.evaluate({again})")


def _choose(splits: Splits, part: str | None, *, own: bool) -> tuple[str, Part]:
    """Return the name of the chosen part, and the part; by default test, or all samples if other data have no parts."""
    parts = splits.parts
    if part is None:
        part = "test" if "test" in parts else "validation" if own and "validation" in parts else "train"
    if not own and list(parts) == ["train"] == [part]:
        return "all", parts["train"]
    if part not in parts:
        raise DataError(f"the data have no {part} part; they have {', '.join(parts)}")
    return part, parts[part]


def _check_fit(run: Run, splits: Splits) -> None:
    expected = run.metadata["data"]
    shape = shape_from_record(expected["shape"])
    if not have_fitting_shape(run, splits.shape, shape):
        raise DataError(
            f"the samples have shape {splits.shape}, but the model of run {run.id} takes samples of shape {shape}"
        )
    if splits.has_missing and "mean" not in scaling_in(run.weights):
        raise DataError(
            f"some inputs are missing (NaN), but the model of run {run.id} was trained without missing values; fill "
            "them in or remove those samples"
        )
    if (splits.classes is None) != (expected["classes"] is None):
        kinds = ("numbers", "classes") if splits.classes is None else ("classes", "numbers")
        raise DataError(f"the targets are {kinds[0]}, but the model of run {run.id} was trained to predict {kinds[1]}")
    if splits.classes is not None and splits.classes > expected["classes"]:
        raise DataError(
            f"the data have the label {splits.classes - 1}, but the model of run {run.id} was trained on classes 0 to "
            f"{expected['classes'] - 1}"
        )


PROGRAM = """\
import torch

model = torch.export.load("{path}").module()
outputs = model(x)  # x: {dtype} of shape {shape}, prepared as for training
"""
STATE = """\
import torch

network = ...  # build it as for training
network.load_state_dict(torch.load("{path}", weights_only=True))
network.eval()
"""
ONNX = """\
import onnxruntime

session = onnxruntime.InferenceSession("{path}")
(outputs,) = session.run(None, {{"x": x}})  # x: {dtype} of shape {shape}, prepared as for training
"""


def export_program(run: Run, path: Path) -> str:
    """Write the model as a torch.export program, for any number of samples; return the lines that load it."""
    program, x = _exported(run)
    with _replaced(path) as file:
        torch.export.save(program, file)
    return _lines(PROGRAM, path, x)


def export_state(run: Run, path: Path) -> str:
    """Write the model's weights as a plain state dict; return the lines that load it."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in run.weights.items()}
    with _replaced(path) as file:
        torch.save(weights, file)
    return STATE.format(path=path)


def export_onnx(run: Run, path: Path) -> str:
    """Write the model as ONNX, for any number of samples; return the lines that run it with onnxruntime."""
    for package in ("onnx", "onnxscript"):
        optional_module(package, "an ONNX file", "onnx")
    exported, x = _exported(run)
    with _quiet():
        program = torch.onnx.export(exported, input_names=["x"], output_names=["outputs"], dynamo=True, verbose=False)
    if program is None:
        raise ModelError(f"the model of run {run.id} cannot be exported to ONNX")
    with _replaced(path) as file:
        file.write(program.model_proto.SerializeToString())
    return _lines(ONNX, path, x)


def _exported(run: Run) -> tuple[Any, torch.Tensor]:
    """Return the model as a program for a batch of any size, and the two samples that it was traced with."""
    run = with_model(run)
    shape = run.metadata["data"]["shape"]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise ModelError(
            f"the model of run {run.id} takes several inputs, and the export of such models is not supported; "
            "-o model.pt writes its weights"
        )
    network: nn.Module = run.model
    failure: Exception | None = None
    for x in (torch.zeros(2, *shape, dtype=flat_dtype(network)), torch.zeros(2, *shape, dtype=torch.int64)):
        try:
            with torch.no_grad():
                network(x)
        except Exception as error:  # a user's network may raise anything; tokens are integers
            failure = failure or error
            continue
        try:
            with _quiet():
                batch = torch.export.Dim.DYNAMIC
                return torch.export.export(network, (x,), dynamic_shapes=({0: batch},)), x
        except Exception as error:
            failure = error
            break
    reason = str(failure).strip().partition("\n")[0]
    raise ModelError(
        f"the model of run {run.id} cannot be exported as a program: {type(failure).__name__}: {reason}; "
        "-o model.pt writes its weights"
    ) from failure


def _lines(text: str, path: Path, x: torch.Tensor) -> str:
    shape = f"(n, {', '.join(map(str, x.shape[1:]))})"
    return text.format(path=path, dtype=str(x.dtype).removeprefix("torch."), shape=shape)


@contextmanager
def _replaced(path: Path) -> Iterator[Any]:
    try:
        with replacing(path, named_by_user=True) as file:
            yield file
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch's exporters print about their progress."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


EXPORTS: dict[str, Callable[[Run, Path], str]] = {".pt2": export_program, ".pt": export_state, ".onnx": export_onnx}
"""How a model is written, by the ending of the file."""
