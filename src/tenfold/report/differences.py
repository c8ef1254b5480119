"""What runs have in common and what tells them apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tenfold.experiment import FIELDS, FOLD_FIELDS, Experiment
from tenfold.report.formatting import plain, setting, several
from tenfold.runs import Run

LABEL_FIELDS = 3
"""A legend names settings by all that differs; if that is more than this, rather by the titles they were given."""
LABEL_LETTERS = 60
SPEAK_FOR_THEMSELVES = (
    "fold_mode",
    "model",
    "data",
    "optimizer",
    "strategy",
    "shards",
    "device",
    "engine",
    "transport",
)
MIXING = tuple(
    name for name, (section, _) in FIELDS.items() if section == "division" and name not in ("workers", *FOLD_FIELDS)
)
"""How replicas share the data and mix: without meaning where there is only one."""


HARDWARE = ("cluster", "link")
"""What only a virtual cluster has."""


class Described(Protocol):
    """Whatever comes from an experiment: a run, or a prediction."""

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        ...


def unusual(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that differ from the defaults, by their short names; the title is not one of them."""
    defaults = Experiment().flat()
    return {key: value for key, value in experiment.flat().items() if key != "name" and value != defaults[key]}


def differing(runs: Sequence[Described]) -> dict[str, list[Any]]:
    """Return every field in which the runs' experiments differ, with each run's value."""
    flats = [run.experiment.flat() for run in runs]
    names = [key for key in flats[0] if key != "name"] if flats else []
    values = {key: [flat[key] for flat in flats] for key in names}
    return {key: listed for key, listed in values.items() if any(value != listed[0] for value in listed)}


def varied(runs: Sequence[Described]) -> list[str]:
    """Return the fields that make different settings, the workers first; a seed makes none, nor mixing with oneself."""
    mixing = differing([run for run in runs if run.experiment.division.workers > 1])
    names = [name for name in differing(runs) if name != "seed" and (name not in MIXING or name in mixing)]
    if len({run.experiment.machine.engine for run in runs} - {"virtual"}) <= 1:  # that it is virtual says the clock
        names = [name for name in names if name != "engine"]
    return sorted(names, key=lambda name: name != "workers")


def settings(run: Run, among: Sequence[Run]) -> str:
    """Return in one line how a run differs from the defaults, as far as it also differs from the others."""
    told = {"model", "data"} if not run.experiment.name else set()  # an unnamed run's title is its model and data
    own = unusual(run.experiment)
    return " ".join(f"{key}={setting(own[key])}" for key in differing(among) if key in own and key not in told)


def spoken(fields: Mapping[str, Any]) -> str:
    """Return fields in words: "4 workers, butterfly, sync every 16"."""
    alone = fields.get("workers") == 1
    untold = (*(MIXING if alone else ()), *(name for name in HARDWARE if fields.get(name) is None))
    return ", ".join(_phrase(name, value) for name, value in fields.items() if name not in untold)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: what differs, or its title where that is too much; never two the same.

    Where some times were measured and others predicted, it says so.
    """
    names = varied(runs)
    titles = [plain(run.title) for run in runs]
    if not names or (len(names) > LABEL_FIELDS and len(set(titles)) == len(runs)):
        told = titles
    else:
        told = [spoken({name: flat[name] for name in names}) for flat in (run.experiment.flat() for run in runs)]
    if len({run.clock for run in runs}) > 1:
        told = [f"{name}, {run.clock}".removeprefix(", ") for name, run in zip(told, runs, strict=True)]
    told = [name or title for name, title in zip(told, titles, strict=True)]
    seen = Counter(told)
    return [name if seen[name] == 1 else f"{name} (run {run.id})" for name, run in zip(told, runs, strict=True)]


def repeats(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups that differ in nothing but the seed, in the order of their first run."""
    groups: list[tuple[tuple[Experiment, str], list[Run]]] = []
    for run in runs:
        one = run.experiment.replace(name="", seed=0), run.clock
        group = next((group for other, group in groups if other == one), None)
        if group is None:
            groups.append((one, [run]))
        else:
            group.append(run)
    return [group for _, group in groups]


def _phrase(name: str, value: Any) -> str:
    if name in ("workers", "threads", "folds") and value is not None:
        return several(value, name.removesuffix("s"))
    return setting(value) if name in SPEAK_FOR_THEMSELVES else f"{name.replace('_', ' ')} {setting(value)}"
