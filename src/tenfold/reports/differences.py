"""The fields in which runs differ, and short labels from these."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, FOLD_FIELDS, Experiment
from tenfold.reports.formatting import field_value, plural, short_title
from tenfold.reports.summary import HOW_RUN, PREDICTED
from tenfold.runs import Run
from tenfold.runs.run import as_asked

LABEL_FIELDS = 3
"""If runs differ in more fields than this, a legend shows their titles instead."""
VALUE_ONLY = (
    "fold_mode",
    "model",
    "data",
    "optimizer",
    "strategy",
    "shards",
    "device",
    "engine",
    "transport",
    "launcher",
)
COUNTED = {
    "workers": "worker",
    "threads": "thread",
    "folds": "fold",
    "epochs": "epoch",
    "loader_workers": "loader worker",
    "limit": "sample",
}
"""Fields that are counts."""
MIXING_FIELDS = tuple(
    name for name, (section, _) in FIELDS.items() if section == "parallel" and name not in ("workers", *FOLD_FIELDS)
)
"""Fields that control how replicas divide the data and average; they have no effect on a single replica."""

DEPENDENT_DEFAULTS: dict[str, Any] = {
    "batch_size": None,
    "schedule": None,
    "average": "auto",
    "optimizer_state": "auto",
}
"""Fields whose default depends on other fields, with the value that represents the default."""
DEPENDENT_ON_STRATEGY = ("average", "optimizer_state")
DEFAULT = "default"
CLUSTER_FIELDS = ("cluster", "link")
"""Fields of a virtual cluster."""
LAUNCHER = "launcher"
"""The name of the setting for the program that started the workers; it is not a field of an experiment."""


class HasExperiment(Protocol):
    """Anything made from an experiment: a run or a prediction."""

    @property
    def experiment(self) -> Experiment: ...


def changed_fields(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that differ from the defaults, except the name."""
    defaults, compared = _defaults(), comparable_fields(experiment)
    changed = [name for name, value in compared.items() if name != "name" and value != defaults[name]]
    return {name: compared[name] for name in changed}


@cache
def _defaults() -> dict[str, Any]:
    return comparable_fields(Experiment())


def comparable_fields(experiment: Experiment) -> dict[str, Any]:
    """Return all fields; values that are the defaults for this number of workers or strategy become DEFAULT.

    If the strategy is not installed here or not trusted, the averaging fields are returned unchanged.
    """
    flat = experiment.flat()
    try:
        usual = experiment.replace(**DEPENDENT_DEFAULTS).flat()
    except ExperimentError:
        kept = {name: flat[name] for name in DEPENDENT_ON_STRATEGY}
        usual = experiment.replace(**DEPENDENT_DEFAULTS | kept).flat() | dict.fromkeys(kept)
    return flat | {name: DEFAULT for name in DEPENDENT_DEFAULTS if flat[name] == usual[name]}


def differing_fields(runs: Sequence[HasExperiment]) -> dict[str, list[Any]]:
    """Return the fields in which the experiments differ, with the value of each.

    A value derived from other fields, such as a batch size from the number of workers, does not count as a difference;
    nor does a value that is the default in one experiment and set explicitly in another.
    """
    flats, whole = [comparable_fields(run.experiment) for run in runs], [run.experiment.flat() for run in runs]
    names = [key for key in flats[0] if key != "name"] if flats else []
    return {key: [flat[key] for flat in flats] for key in names if _differ(flats, key) and _differ(whole, key)}


def _differ(flats: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(flat[key] != flats[0][key] for flat in flats)


def varied_fields(runs: Sequence[HasExperiment]) -> list[str]:
    """Return the fields in which settings differ, workers first; seeds and the averaging of one worker are ignored."""
    mixing = differing_fields([run for run in runs if run.experiment.parallel.workers > 1])
    names = [
        name for name in differing_fields(runs) if name != "seed" and (name not in MIXING_FIELDS or name in mixing)
    ]
    machines = [run.experiment.machine for run in runs]
    if len({machine.engine for machine in machines if not machine.is_virtual}) <= 1:  # the clock says which are virtual
        names = [name for name in names if name != "engine"]
    return sorted(names, key=lambda name: name != "workers")


def varied_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the fields in which settings differ with their values, and the launcher if it varies."""
    names, started_by = varied_fields(runs), [find_launcher(run) for run in runs]
    launchers = len(set(started_by) - {None}) > 1
    varied = []
    for run, launcher in zip(runs, started_by, strict=True):
        flat = run.experiment.flat()
        varied.append({name: flat[name] for name in names} | ({LAUNCHER: launcher} if launchers else {}))
    return varied


def find_launcher(run: Run) -> str | None:
    """Return the launcher of a run's workers, such as torchrun; None for a single worker and for virtual workers."""
    if run.experiment.parallel.workers == 1 or run.clock == PREDICTED:
        return None
    started: dict[str, Any] = run.metadata.get("launch") or {}
    return str(started.get("launcher", "tenfold"))


def describe_difference(run: Run, differing: Collection[str]) -> str:
    """Return "field=value ..." for the `differing` fields that are not at their defaults in this run."""
    if not differing:
        return ""
    in_title = {"model", "data"} if not run.experiment.name else set()  # an unnamed run's title is its model and data
    own = changed_fields(run.experiment)
    return " ".join(f"{key}={field_value(own[key])}" for key in differing if key in own and key not in in_title)


def describe_settings(fields: Mapping[str, Any]) -> str:
    """Return fields as a phrase: "4 workers, butterfly, sync every 16"."""
    alone = fields.get("workers") == 1
    unset = (name for name in (*CLUSTER_FIELDS, LAUNCHER) if fields.get(name) is None)
    hidden = (*(MIXING_FIELDS if alone else ()), *unset)
    return ", ".join(_phrase(name, value) for name, value in fields.items() if name not in hidden)


def label_runs(runs: Sequence[Run]) -> list[str]:
    """Return a unique short label for each run: the fields that differ, or its title if there are too many.

    If there are real and simulated runs, the label includes this, too.
    """
    settings = varied_settings(runs)
    names = settings[0] if settings else {}
    titles = [short_title(run.title) for run in runs]
    if not names or (len(names) > LABEL_FIELDS and len(set(titles)) == len(runs)):
        labels = titles
    else:
        labels = [describe_settings(setting) for setting in settings]
    if len({run.clock for run in runs}) > 1:
        labels = [f"{name}, {HOW_RUN[run.clock]}".removeprefix(", ") for name, run in zip(labels, runs, strict=True)]
    labels = [name or title for name, title in zip(labels, titles, strict=True)]
    seen = Counter(labels)
    return [name if seen[name] == 1 else f"{name} (run {run.id})" for name, run in zip(labels, runs, strict=True)]


def group_repeats(runs: Sequence[Run]) -> list[list[Run]]:
    """Return groups of runs that differ only in the seed, in the order of their first runs."""
    groups: list[tuple[tuple[Experiment, str, str | None], list[Run]]] = []
    for run in runs:
        setting = as_asked(run.experiment, run.metadata).replace(name="", seed=0), run.clock, find_launcher(run)
        group = next((group for other, group in groups if other == setting), None)
        if group is None:
            groups.append((setting, [run]))
        else:
            group.append(run)
    return [group for _, group in groups]


def _phrase(name: str, value: Any) -> str:
    if name in COUNTED and value is not None:
        return plural(value, COUNTED[name])
    if name.endswith("_options") and isinstance(value, dict) and value:
        return ", ".join(f"{option} {field_value(text)}" for option, text in value.items())
    if value is None:
        return f"default {name.replace('_', ' ')}"
    return field_value(value) if name in VALUE_ONLY else f"{name.replace('_', ' ')} {field_value(value)}"
