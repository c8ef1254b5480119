"""Every field of an experiment by its short name, how fields are sorted into sections, and their defaults."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenfold.catalog import STRATEGIES, nearest
from tenfold.common import PARTS
from tenfold.experiment.section_fields import USUAL_BATCH, Data, Machine, Model, Parallel, Section, Training
from tenfold.experiment.values import member_of, plain

if TYPE_CHECKING:
    from tenfold.experiment.experiment import Experiment

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
    if key == "overlap":
        return "it was removed: rounds that overlap with steps gained 2% of the speed without rounds"
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


def with_defaults(experiment: "Experiment") -> "Experiment":
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


def _averages_gradients(experiment: "Experiment") -> bool:
    training, parallel = experiment.training, experiment.parallel
    rounds_unset = parallel.sync_every is None and parallel.local_after == 0
    silent = rounds_unset and parallel.optimizer_state == "auto"
    one_step = not training.needs_closure and not training.optimizer_traits.averages_weights
    simple = parallel.outer == "none" and parallel.compression == "none" and one_step
    return parallel.replicas > 1 and silent and simple and bool(member_of(STRATEGIES, parallel.strategy).always_exact)
