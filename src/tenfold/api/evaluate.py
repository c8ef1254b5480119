"""How good a run's model is on other data, or on another part of its own: `run.evaluate()`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.api.predict import have_fitting_shape
from tenfold.common.part_names import PARTS
from tenfold.common.registry import suggest
from tenfold.data import Part, Splits, loading
from tenfold.data.files.known_data import KnownData
from tenfold.data.table_columns import Columns
from tenfold.data.tree import shape_from_record
from tenfold.data.user_datasets import read_by_loader
from tenfold.engines.prepare import load, python_value
from tenfold.errors import DataError, ExperimentError
from tenfold.experiment import Experiment
from tenfold.models.input_scaling import scaling_in
from tenfold.runs import Run
from tenfold.runs.store import FOLD
from tenfold.training import choose_loss, choose_metrics, evaluation


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model, and what they were measured on."""

    metrics: dict[str, float]
    part: str
    samples: int


def evaluate(
    run: Run, data: Any = None, *, part: str | None = None, metrics: Any = None, loss: Any = None
) -> Evaluation:
    """Return the loss and the metrics of a run's model on a part of its own data, or on other data."""
    if part is not None and part not in PARTS:
        raise DataError(f"unknown part '{part}'; {suggest(part, PARTS)}")
    changes = {"metrics": metrics, "loss": loss}
    experiment = run.experiment.replace(**{name: value for name, value in changes.items() if value is not None})
    _check_measures(run, experiment)
    splits = (
        _own_data(run, experiment, part) if data is None else _read_as_recorded(experiment, run.facts["data"], data)
    )
    name, chosen = _choose(splits, part, own=data is None)
    _check_fit(run, splits)
    training, classes = experiment.training, run.facts["data"]["classes"]
    measures = choose_loss(training, classes), choose_metrics(training, classes)
    return Evaluation(
        metrics=evaluation.evaluate(run.model, chosen, *measures, precision=training.precision),
        part=name,
        samples=len(chosen),
    )


def _own_data(run: Run, experiment: Experiment, part: str | None) -> Splits:
    if "data" in experiment.unrecorded_fields:
        raise DataError(f"run {run.id} was given its data as Python objects; pass them: run.evaluate(data=...)")
    if run.kind == FOLD and part in ("train", "validation"):
        raise DataError(f"run {run.id} is a fold; `tenfold show {run.id}` has its metrics on its {part} part")
    return load(experiment, "cpu")


def _read_as_recorded(experiment: Experiment, facts: dict[str, Any], given: Any) -> Splits:
    """Read other data in the way in which the data of a run were read, and in the parts that they come in.

    The columns and the collate function are those of its experiment, categories and classes those of its facts.
    """
    section, known = experiment.data, KnownData.of(facts)
    given, collate = read_by_loader(given)
    is_folder = isinstance(given, str) and Path(given).expanduser().is_dir()
    are_images = is_folder and known is not None and not known.features
    return loading.read(
        given,
        section.options if are_images else None,
        columns=Columns(section.input_columns, section.target_column),
        collate=collate or python_value(section.collate, "collate"),
        known=known,
    )


def _check_measures(run: Run, experiment: Experiment) -> None:
    missing = [name for name in ("loss", "metrics") if name in experiment.unrecorded_fields]
    if missing:
        again = ", ".join(f"{name}=..." for name in missing)
        raise ExperimentError(f"run {run.id} was given Python objects; give them again: run.evaluate({again})")


def _choose(splits: Splits, part: str | None, *, own: bool) -> tuple[str, Part]:
    """Return the chosen part and its name; by default test, or all samples of other data without parts."""
    found = splits.parts
    if part is None:
        part = "test" if "test" in found else "validation" if own and "validation" in found else "train"
    if not own and list(found) == ["train"] == [part]:
        return "all", found["train"]
    if part not in found:
        raise DataError(f"the data have no {part} part; they have {', '.join(found)}")
    return part, found[part]


def _check_fit(run: Run, splits: Splits) -> None:
    expected = run.facts["data"]
    shape = shape_from_record(expected["shape"])
    if not have_fitting_shape(run, splits.shape, shape):
        raise DataError(
            f"the samples have the shape {splits.shape}; the model of run {run.id} takes samples of shape {shape}"
        )
    if splits.has_missing and scaling_in(run.weights) is None:
        raise DataError(f"inputs are missing, which the model of run {run.id} was not trained on; fill or remove them")
    if (splits.classes is None) != (expected["classes"] is None):
        kinds = ("numbers", "classes") if splits.classes is None else ("classes", "numbers")
        raise DataError(f"the targets are {kinds[0]}; the model of run {run.id} was trained to predict {kinds[1]}")
    if splits.classes is not None and splits.classes > expected["classes"]:
        raise DataError(
            f"the data have the label {splits.classes - 1}; the model of run {run.id} knows classes 0 to "
            f"{expected['classes'] - 1}"
        )
