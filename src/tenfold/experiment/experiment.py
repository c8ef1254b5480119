"""The experiment: what to run, as one frozen value that loads from and saves to TOML.

Five sections hold the fields. In Python and on the command line each field also goes by its own short name
(`lr` is `training.lr`); the names are unique across sections. A section's `name` and `options` are called after the
section: `model` is `model.name`, `data_options` is `data.options`.
"""

import functools
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import tomli_w
from pydantic import ValidationError, field_validator, model_validator

from tenfold.common import PARTS
from tenfold.common.files import read_toml, write_toml
from tenfold.common.imports import Origin, RecordedPath, check_trusted, mark_paths
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment.field_types import Fields
from tenfold.experiment.section_fields import USUAL_BATCH, Data, Machine, Model, Parallel, Section, Training
from tenfold.experiment.values import (
    AUTO,
    PythonObject,
    Text,
    UnrecordedObject,
    count_workers,
    explain,
    format_value,
    member_of,
    plain,
)
from tenfold.registry import STRATEGIES, nearest

SMALLEST_BATCH, LARGEST_GLOBAL_BATCH = 16, 512
"""docs/design/0006 has the measurements behind these and the other defaults."""
SECTIONS: dict[str, type[Section]] = {
    "model": Model,
    "data": Data,
    "training": Training,
    "parallel": Parallel,
    "machine": Machine,
}


def _short(section: str, field: str) -> str:
    if field == "name":
        return section
    if (section, field) == ("parallel", "schedule"):
        return "pipeline_schedule"  # `schedule` is that of the learning rate
    return f"{section}_{field}" if field == "options" else field


FIELDS: dict[str, tuple[str, str]] = {
    _short(section, field): (section, field) for section, cls in SECTIONS.items() for field in cls.model_fields
}
"""Every field's short name, with the section and the field that it stands for."""
FIELD_ALIASES = {
    "learning_rate": "lr",
    "nodes": "workers",
    "replicas": "workers",
    "n_workers": "workers",
    "dataset": "data",
    "network": "model",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "batch": "batch_size",
    "scheduler": "schedule",
    "criterion": "loss",
    "random_state": "seed",
    "grad_clip": "clip",
    "max_grad_norm": "clip",
    "gradient_clip_val": "clip",
    "clip_grad_norm": "clip",
    "train_loader": "data",
    "train_dataset": "data",
    "collate_fn": "collate",
    "optim": "optimizer",
    "lr_scheduler": "schedule",
    "val_split": "validation_fraction",
    "validation_split": "validation_fraction",
    "accumulate_grad_batches": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "gradient_checkpointing": "activation_checkpointing",
    "early_stopping": "patience",
    "dataloader_workers": "loader_workers",
    "num_microbatches": "micro_batches",
    "pipeline_stages": "stages",
}
"""What other libraries call fields, and the names that these have here."""


RENAMED = {"division": "[parallel]", "fused": "machine.stacking"}
"""Names that sections and fields had before."""


def suggest_field(name: str) -> str:
    """Return which field was probably meant by an unknown name, or where all are listed."""
    key = name.lower().replace("-", "_")
    near = FIELD_ALIASES.get(key) or nearest(key, [*FIELDS, *SECTIONS])
    if key == "shuffle":
        return "samples are shuffled in every epoch"
    if key in RENAMED:
        return f"it is called {RENAMED[key]} now"
    if key == "num_workers":
        return "did you mean parallel.workers (replicas) or data.loader_workers (of a DataLoader)?"
    if near in FIELDS:
        return f"did you mean {'.'.join(FIELDS[near])}?"
    return f"did you mean [{near}]?" if near else "`tenfold schema` lists the fields"


def nested(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge fields into sections, later layers winning. Keys: short names, sections, or "section.field"."""
    merged: dict[str, Any] = {}

    def put(section: str, fields: dict[str, Any]) -> None:
        if isinstance(merged.setdefault(section, {}), dict):  # else it is refused as a whole when it is validated
            merged[section] |= {field: plain(value) for field, value in fields.items()}

    for layer in layers:
        for key, value in layer.items():
            if key in SECTIONS and isinstance(value, Section):
                value = {field: getattr(value, field) for field in type(value).model_fields}
            section, _, field = str(key).partition(".")
            if key in SECTIONS and _is_section(key, value):
                put(key, value)
            elif field and section in SECTIONS:
                field, _, option = field.partition(".")
                before = merged.get(section, {}).get(field, {}) if isinstance(merged.get(section), dict) else {}
                put(section, {field: {**before, option: value} if option and isinstance(before, dict) else value})
            elif key in FIELDS:
                section, field = FIELDS[key]
                put(section, {field: value})
            else:
                merged[key] = value
    return merged


def _is_section(key: str, value: object) -> bool:
    """Return whether a dictionary is a section's table, not data given as a dictionary of parts or columns."""
    if not isinstance(value, dict) or key != "data" or not value:
        return isinstance(value, dict)
    columns = any(hasattr(item, "__array__") for name, item in value.items() if name not in Data.model_fields)
    return not columns and not set(value) <= set(PARTS)


class Experiment(Section):
    """What to run. Give the fields by their short names, or by section.

    >>> Experiment(model="mlp", lr=0.1).training.lr
    0.1
    """

    name: Text = ""
    """A title for tables and plots."""
    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    parallel: Parallel = Parallel()
    machine: Machine = Machine()

    def __init__(self, /, **fields: Unpack[Fields]) -> None:
        try:
            super().__init__(**dict[str, Any](fields))
        except ValidationError as error:
            raise ExperimentError(explain(error, type(self), suggest_field)) from None

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        merged = nested(fields)
        parallel, machine = merged.get("parallel"), merged.get("machine")
        if isinstance(parallel, dict) and parallel.get("workers") == AUTO:
            device = machine.get("device", "cpu") if isinstance(machine, dict) else "cpu"
            merged["parallel"] = parallel | {"workers": count_workers(device if isinstance(device, str) else "cpu")}
        return merged

    @field_validator("parallel")
    @classmethod
    def _fits_together(cls, parallel: Parallel) -> Parallel:
        if parallel.stages == ():
            raise ValueError("stages is an empty list; set the number of stages, or list one slice or module per stage")
        if parallel.shards == "fractions":
            if parallel.fractions is None or len(parallel.fractions) != parallel.replicas:
                raise ValueError(
                    f'shards = "fractions" needs one of `fractions` per replica, {parallel.replicas} in all'
                )
            if abs(sum(parallel.fractions) - 1) > 1e-6:
                raise ValueError(f"`fractions` add up to {sum(parallel.fractions):g}; they must add up to 1")
        if parallel.divide == "layers" and parallel.workers % parallel.group_size:
            raise ValueError(
                f"{parallel.group_size} stages do not divide {parallel.workers} workers into equal pipelines; make "
                "`workers` a multiple of `stages`"
            )
        if parallel.sync_every == "epoch" and parallel.local_after:
            raise ValueError(
                f'sync_every = "epoch" cannot be combined with local_after = {parallel.local_after}, from which rounds '
                "are counted; give `sync_every` as a number of steps"
            )
        return parallel

    @classmethod
    def given(cls, experiment: object, /, **fields: Unpack[Fields]) -> Self:
        """Return the given experiment, by default one with all fields at their defaults, with some fields changed."""
        if experiment is not None and not isinstance(experiment, cls):
            what = format_value(experiment) if isinstance(experiment, str) else f"a {type(experiment).__name__}"
            raise ExperimentError(
                f"the first argument should be an Experiment, not {what}; give fields by name, model=... and data=..., "
                'or read a file: Experiment.load("file.toml")'
            )
        return (experiment or cls()).replace(**fields).with_trusted_imports()

    @classmethod
    def recorded(cls, fields: dict[str, Any], origin: Origin) -> Self:
        """Return an experiment that a record holds; what its import paths name is imported only where it is trusted."""
        return cls(**mark_paths(fields, origin))

    @classmethod
    def load(cls, path: str | Path, /, **changes: Unpack[Fields]) -> Self:
        """Read an experiment from a TOML file, with some fields changed.

        Import paths in the file may name code of your own. An installed module, or any module where the file is that
        of a recorded run, has to be named in `changes` or by an earlier call.
        """
        path = Path(path)
        fields = mark_paths(read_toml(path, "an experiment", f"`tenfold init {path}` writes one"), _origin_of(path))
        try:
            return cls(**nested(fields, changes))
        except ExperimentError as error:
            if changes and cls._accepts(fields):
                raise  # the file is not to blame
            raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None

    @classmethod
    def _accepts(cls, fields: dict[str, Any]) -> bool:
        try:
            cls(**fields)
        except ExperimentError:
            return False
        return True

    def save(self, path: str | Path) -> None:
        """Write the experiment as TOML; fields without a value are left out."""
        write_toml(Path(path), self.model_dump(mode="json", exclude_none=True))

    def replace(self, /, **fields: Unpack[Fields]) -> Self:
        """Return the experiment with some fields changed, by their short names."""
        return type(self)(**nested(dict(self), fields))

    @property
    def title(self) -> str:
        """Its name, or those of its model and data."""
        return self.name or "-".join(
            item.split(":")[-1] if isinstance(item, str) else item.name for item in (self.model.name, self.data.name)
        )

    @property
    def named_values(self) -> dict[str, tuple[Any, ...]]:
        """By short name, the values of the fields that take a name or a Python object."""
        return {
            "model": (self.model.name,),
            "data": (self.data.name,),
            "groups": (self.data.groups,),
            "collate": (self.data.collate,),
            "optimizer": (self.training.optimizer,),
            "schedule": (self.training.schedule,),
            "loss": (self.training.loss,),
            "metrics": self.training.metrics,
            "strategy": (self.parallel.strategy,),
            "outer": (self.parallel.outer,),
            "compression": (self.parallel.compression,),
            "engine": (self.machine.engine,),
            "transport": (self.machine.transport,),
        }

    @property
    def import_paths(self) -> list[str]:
        """The import paths that it names, and those of its Python objects that can be imported."""
        named = [value for values in self.named_values.values() for value in values]
        paths = [value.import_path if isinstance(value, PythonObject) else value for value in named]
        return [path for path in paths if isinstance(path, str) and ":" in path]

    def with_trusted_imports(self, *, trust: bool = False) -> Self:
        """Return the experiment with import paths that may be imported.

        Raises ExperimentError if a record or a file named one that this user's own commands have not named before,
        unless `trust` is set. With it they stay marked, as trusted, so that they are not taken for the user's own.
        """

        def released(value: Any, field: str) -> Any:
            if not isinstance(value, RecordedPath) or value.origin.is_trusted:
                return value
            if trust:
                return RecordedPath(value, replace(value.origin, is_trusted=True))
            check_trusted(value, field)
            return str(value)

        changed: dict[str, Any] = {}
        for field, values in self.named_values.items():
            if any(isinstance(value, RecordedPath) for value in values):
                given = [released(value, field) for value in values]
                changed[field] = given if field == "metrics" else given[0]
        return self.replace(**changed) if changed else self

    @property
    def unrecorded_fields(self) -> list[str]:
        """The short names of fields whose Python objects were not recorded, and have to be given again to run."""
        fields = self.named_values
        return [
            field for field, values in fields.items() if any(isinstance(value, UnrecordedObject) for value in values)
        ]

    def flat(self) -> dict[str, Any]:
        """Return every field by its short name, as text, numbers and lists; unset fields have their defaults.

        Import paths of a record stay marked, so that an experiment made of these values imports them no sooner.
        """
        dumped = with_defaults(self).model_dump(mode="json")
        values = {short: dumped[section][field] for short, (section, field) in FIELDS.items()}
        for field, named in self.named_values.items():
            for place, path in enumerate(named):
                if isinstance(path, RecordedPath) and field == "metrics":
                    values[field][place] = path
                elif isinstance(path, RecordedPath):
                    values[field] = path
        return {"name": self.name} | values | {"sync_every": self.parallel.pace}


def with_defaults(experiment: Experiment) -> Experiment:
    """Return the experiment with values for all fields that are "auto" or unset and depend on other fields.

    It depends on the number of workers, so that has to be final.
    """
    training, parallel = experiment.training, experiment.parallel
    changes: dict[str, Any] = {}
    if training.batch_size is None and not training.optimizer_traits.steps_with_all_workers:
        changes["batch_size"] = usual_batch_size(parallel.replicas)
    if training.schedule is None:
        changes["schedule"] = training.lr_schedule_name
    if parallel.average == "auto":
        changes["average"] = "gradients" if _averages_gradients(experiment) else "weights"
    if parallel.optimizer_state == "auto":
        by_weights = changes.get("average", parallel.average) == "weights" and parallel.replicas > 1
        simple = training.optimizer_traits.averages_state and by_weights and parallel.outer == "none"
        averages = simple and not parallel.is_asynchronous
        changes["optimizer_state"] = "average" if averages else "local"
    return experiment.replace(**changes) if changes else experiment


def usual_batch_size(workers: int) -> int:
    """Return the samples per step of each replica: together at most 512, but at least 16 and at most 64 each."""
    return max(SMALLEST_BATCH, min(USUAL_BATCH, LARGEST_GLOBAL_BATCH // workers))


def _averages_gradients(experiment: Experiment) -> bool:
    training, parallel = experiment.training, experiment.parallel
    rounds_unset = parallel.sync_every is None and parallel.local_after == 0
    silent = rounds_unset and parallel.optimizer_state == "auto"
    one_step = not training.needs_closure and not training.optimizer_traits.averages_weights
    simple = parallel.outer == "none" and parallel.compression == "none" and one_step
    return parallel.replicas > 1 and silent and simple and bool(member_of(STRATEGIES, parallel.strategy).always_exact)


def _origin_of(path: Path) -> Origin:
    """Return whose words a file holds: those of whoever wrote it for a command, or those of a store of runs."""
    is_record = path.name == "experiment.toml" and (path.absolute().parent.parent / "tenfold.db").exists()
    way_out = "if you trust it, name it yourself: --set FIELD=PATH on the command line, or as an argument in Python"
    return Origin(str(path), way_out, trusts_user_code=not is_record)


Function = TypeVar("Function", bound=Callable[..., Any])


def fields_by_name(function: Function) -> Function:
    """Decorate a function that takes one argument by position, an experiment; the fields are given by name.

    If anything else is passed by position, the function raises ExperimentError, which shows the correct call.
    """

    @functools.wraps(function)
    def checked(*given: Any, **fields: Any) -> Any:
        if len(given) > 1 or (given and _is_model(given[0])):
            raise ExperimentError(_correct_call(function.__name__, given))
        try:
            return function(*given, **fields)
        except TenfoldError as error:
            raise _without_inner_frames(error)  # noqa: B904 - it is the same error

    return checked  # type: ignore[return-value]


def _without_inner_frames(error: TenfoldError) -> TenfoldError:
    """Return an error whose traceback ends at the user's call; what it says is enough, with the user's own lines in it.

    What caused it stays in `__context__`. The environment variable TENFOLD_TRACEBACK=full keeps everything.
    """
    if os.environ.get("TENFOLD_TRACEBACK") == "full":
        return error
    error.__context__, error.__cause__ = error.__cause__ or error.__context__, None  # which also hides the context
    return error.with_traceback(None)


def fields_of_loader(loader: Any) -> str:
    """Return the fields that stand for a DataLoader: "data=loader.dataset, batch_size=32"."""
    fields = ["data=loader.dataset"]
    if getattr(loader, "batch_size", None):
        fields.append(f"batch_size={loader.batch_size}")
    collate = getattr(loader, "collate_fn", None)
    if collate is not None and not getattr(collate, "__module__", "").startswith("torch."):
        fields.append("collate=loader.collate_fn")
    if getattr(loader, "num_workers", 0):
        fields.append(f"loader_workers={loader.num_workers}")
    return ", ".join(fields)


def is_loader(value: object) -> bool:
    """Return whether a value is a DataLoader of torch or of a package that follows it."""
    return any(base.__name__ == "DataLoader" for base in type(value).__mro__)


def _correct_call(name: str, given: Sequence[Any]) -> str:
    if given[0] is None or isinstance(given[0], Experiment):
        return f"{name} takes one argument by position, the experiment; give fields by name: {name}(experiment, lr=0.1)"
    loaders = [item for item in given[1:] if is_loader(item)]
    data = fields_of_loader(loaders[0]) if loaders else "data=..."
    divided = "; Tenfold makes the batches itself, since it divides the samples among workers" if loaders else ""
    return f"{name} takes the fields of an experiment by name: tenfold.{name}(model=..., {data}){divided}"


def _is_model(value: Any) -> bool:
    return value is not None and not isinstance(value, Experiment | str) and callable(value)


WIDTH = 118


def commented(experiment: Experiment) -> str:
    """Return the experiment as TOML, every field under its explanation; fields without a value are commented out."""
    dumped = experiment.model_dump(mode="json")
    lines = ["# A Tenfold experiment. Run it: tenfold train FILE. Change a field for one run: --set lr=0.1", ""]
    lines += [*_explained("A title for tables and plots."), f"name = {_value(experiment.name)}"]
    for key, section in SECTIONS.items():
        lines += ["", *_explained(section.__doc__ or ""), f"[{key}]"]
        for field, info in section.model_fields.items():
            value = dumped[key][field]
            lines += _explained(info.description or "")
            lines.append(f"# {field} =" if value is None else f"{field} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _explained(text: str) -> list[str]:
    text = " ".join(text.split())
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _key(key: str) -> str:
    """Return a key as TOML writes it: in quotes where it is not a plain word."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _value(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")
