"""What runs have in common and what tells them apart."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tenfold.experiment import Experiment
from tenfold.report.words import plain, setting
from tenfold.runs import Run

LABEL_FIELDS = 3
"""A plot's legend names runs by all that differs, unless more fields than this do."""
LABEL_LETTERS = 40


def unusual(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that differ from the defaults, by their short names; the title is not one of them."""
    defaults = Experiment().flat()
    return {key: value for key, value in experiment.flat().items() if key != "name" and value != defaults[key]}


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return every field in which the runs' experiments differ, with each run's value."""
    flats = [run.experiment.flat() for run in runs]
    names = [key for key in flats[0] if key != "name"] if flats else []
    values = {key: [flat[key] for flat in flats] for key in names}
    return {key: listed for key, listed in values.items() if any(value != listed[0] for value in listed)}


def settings(run: Run, among: Sequence[Run]) -> str:
    """Return in one line how a run differs from the defaults, as far as it also differs from the others."""
    told = {"model", "data"} if not run.experiment.name else set()  # an unnamed run's title is its model and data
    own = unusual(run.experiment)
    return " ".join(f"{key}={setting(own[key])}" for key in differing(among) if key in own and key not in told)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: what differs if that is little, else its title; never two the same."""
    fields = differing(runs)
    titles = [plain(run.title) for run in runs]
    own = [settings(run, runs) or "defaults" for run in runs]
    if 0 < len(fields) <= LABEL_FIELDS:
        names = [", ".join(f"{key} {setting(values[at])}" for key, values in fields.items()) for at in range(len(runs))]
    elif len(set(titles)) < len(runs) and len(set(own)) == len(runs) and max(map(len, own)) <= LABEL_LETTERS:
        names = own
    else:
        names = titles
    seen = Counter(names)
    return [name if seen[name] == 1 else f"{name} (run {run.id})" for name, run in zip(names, runs, strict=True)]


def repeats(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups that differ in nothing but the seed, in the order of their first run."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        fields = {key: value for key, value in run.experiment.flat().items() if key not in ("name", "seed")}
        groups.setdefault(repr(fields), []).append(run)
    return list(groups.values())
