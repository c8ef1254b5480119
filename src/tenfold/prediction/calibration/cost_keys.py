"""Keys under which a profile keeps measured costs: equal for experiments whose steps or rounds cost the same."""

from typing import Any

from tenfold.data import Splits, Tensors
from tenfold.data.tree import describe_shape
from tenfold.experiment import Division, Experiment
from tenfold.experiment.values import PythonObject
from tenfold.models import build, parameter_count
from tenfold.workers.task import Task


def step_key(experiment: Experiment, splits: Splits) -> str:
    """Return a line that is the same for experiments whose steps cost the same, such as

    "mlp hidden=[128, 64], 1x28x28 -> 10, sgd, fp32".
    """
    model, training = experiment.model.model_dump(mode="json"), experiment.training.model_dump(mode="json")
    network = [model.pop("name"), *_settings(model | model.pop("options"))]
    given = experiment.model.name
    if isinstance(given, PythonObject) and given.import_path is None:  # its name does not identify it
        built = build(experiment.model, splits.shape, splits.outputs, seed=0)
        network.append(f"weights={parameter_count(built)}")
    shape = describe_shape(splits.shape)
    optimizer = [training["optimizer"], *_settings({"clip": training["clip"]} | training["optimizer_options"])]
    if training["optimizer"] == "sgd" and not training["momentum"]:
        optimizer.append("momentum=0")
    parts = [" ".join(network), f"{shape} -> {splits.outputs}", " ".join(optimizer), training["precision"]]
    if training["accumulate"] > 1:
        parts.append(f"accumulate={training['accumulate']}")
    if training["activation_checkpointing"]:
        parts.append(f"activation_checkpointing={training['activation_checkpointing']}")
    if training["loss"] is not None:
        parts.append(training["loss"])
    if not isinstance(splits.train, Tensors):
        parts.append(f"data {splits.name}")
    return ", ".join(parts)


def work_of(task: Task) -> tuple[str, int]:
    """Return the key under which a profile keeps the step times of a task, and its batch size."""
    return step_key(task.experiment, task.splits), task.experiment.training.samples_per_step


def round_extras(division: Division) -> dict[str, dict[str, Any]]:
    """Return the compression and the outer optimizer of a division, as fields under a key that includes the options."""
    found = {}
    for field in ("compression", "outer"):
        name, options = getattr(division, field), getattr(division, f"{field}_options")
        if name != "none":
            found[" ".join([field, name, *_settings(options)])] = {field: name, f"{field}_options": options}
    return found


def _settings(fields: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items() if value is not None]
