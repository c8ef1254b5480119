"""The numbers of a run by name: metrics on a part of the data, and seconds that include more or less than training."""

from collections.abc import Iterable, Sequence

from tenfold.common.part_names import PARTS
from tenfold.common.registry import suggest
from tenfold.errors import ExperimentError
from tenfold.report.summary import KIND_NAMES, OTHER_KINDS, TRAINING_KINDS
from tenfold.runs import Run

MIXING_KINDS = ("wait", "communicate")
SECONDS = {
    "seconds": "training time",
    "seconds_without_averaging": "time without averaging",
    "seconds_with_evaluation": "time with evaluation",
    "seconds_in_all": "time in all",
    "seconds_to_target": "time to target",
}
"""Times that a table can show, with their headings."""
KIND_SECONDS = {f"{kind}_seconds": name for kind, name in KIND_NAMES.items()}
"""The times of single kinds, with their headings: compute_seconds, communicate_seconds, evaluate_seconds."""
EXPLAINED = {
    "seconds_without_averaging": "data, copies to a GPU and computing, without averaging; mean over the workers",
    "seconds_with_evaluation": "training and evaluation",
    "seconds_in_all": "startup, training, evaluation and saving",
}
RATIOS = ("speedup", "efficiency", "PI", "gain")


def is_time(column: str) -> bool:
    """Return whether a column holds seconds."""
    return column in SECONDS or column in KIND_SECONDS


def is_timed(column: str) -> bool:
    """Return whether a column holds seconds, or a ratio of seconds."""
    return is_time(column) or column in RATIOS


def known_columns(metrics: Iterable[str]) -> list[str]:
    """Return the names of all columns, given those of the metrics; each metric also on a part, as in test_accuracy."""
    names = list(dict.fromkeys(metrics))
    on_parts = [f"{part}_{name}" for name in names for part in PARTS]
    return [*SECONDS, *RATIOS, *names, *on_parts, *KIND_SECONDS]


def require_columns(columns: Sequence[str], metrics: Iterable[str]) -> None:
    """Raise an error for a column that does not exist, with the names of those that do."""
    known = known_columns(metrics)
    for name in columns:
        if name not in known:
            raise ExperimentError(f"unknown column '{name}'; {suggest(name, known)}")


def run_value(run: Run, column: str) -> float | None:
    """Return a number of one run; None where it was not measured, and for ratios, which need several runs.

    A run that copied nothing, as on a CPU, has no seconds of copying.
    """
    if column in SECONDS:
        return _seconds(run, column)
    if column in KIND_SECONDS:
        if not run.times:
            return None
        seconds = run.times.get(column.removesuffix("_seconds"), 0.0)
        at_start: float = run.result.get("start_copy_seconds", 0.0)
        return (seconds + at_start or None) if column == "copy_seconds" else seconds
    if column in run.metrics:
        return run.metrics[column]
    part, _, metric = column.partition("_")
    return run.metrics_on(part).get(metric) if part in PARTS else None


def _seconds(run: Run, column: str) -> float | None:
    """Return the training time, or one with other kinds of time in it."""
    if column == "seconds":
        return run.seconds
    if column == "seconds_to_target":
        return run.seconds_to_target
    if run.seconds is None or not run.times:
        return None
    if column == "seconds_without_averaging":
        return sum(run.times.get(kind, 0.0) for kind in TRAINING_KINDS if kind not in MIXING_KINDS)
    others = ("evaluate",) if column == "seconds_with_evaluation" else OTHER_KINDS
    return run.seconds + sum(run.times.get(kind, 0.0) for kind in others)
