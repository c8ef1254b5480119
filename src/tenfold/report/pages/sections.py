"""What the sections of a report say: plain values, ready for the template."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tenfold.experiment import FIELDS, SECTIONS
from tenfold.report import clocks, summary
from tenfold.report.differences import Described, differing, unusual
from tenfold.report.formatting import count, duration, measure, plain, setting, several, storage
from tenfold.report.plots import fold_plots as folds
from tenfold.report.tables.fold_tables import name_of
from tenfold.report.tables.run_tables import history_columns
from tenfold.runs import (
    Ended,
    EpochEnded,
    FoldChanged,
    FoldsStarted,
    Lifecycle,
    Note,
    Recorded,
    Run,
    Started,
    Warned,
    WorkerDropped,
)
from tenfold.runs.event_rows import facts_of


def headline(run: Run) -> list[dict[str, str]]:
    """Return the few numbers of a run that matter most, each with its name and a note."""
    result = run.result
    numbers = [
        number(f"{summary.part(run)} {name}", measure(name, one), folds.mean_of(run, name))
        for name, one in summary.scores(run).items()
    ]
    if run.seconds is not None:
        numbers.append(number("training time", duration(run.seconds), clocks.about(run)))
    if (speed := result.get("samples_per_second")) is not None:
        numbers.append(number("samples a second", count(speed), run.clock))
    if "epochs" in result:
        steps = several(result["steps"], "step") if "steps" in result else ""
        numbers.append(number("epochs", count(result["epochs"]), steps))
    if (size := summary.parameters(run)) is not None:
        numbers.append(number("parameters", count(size)))
    return numbers


def number(name: str, value: str, note: str = "") -> dict[str, str]:
    """Return a number of the headline."""
    return {"name": plain(name), "value": value, "note": note}


def epochs(run: Run) -> dict[str, Any]:
    """Return the per-epoch table: names of columns, and rows."""
    names = history_columns(run)
    rows = [
        [count(row["epoch"]), count(row.get("step")), duration(row.get("seconds"))]
        + [measure(name, row.get(name)) for name in names]
        for row in run.history
    ]
    return {
        "columns": ["epoch", "step", f"training, {run.clock}", *(name.replace("_", " ") for name in names)],
        "rows": rows,
    }


def fields(runs: Sequence[Described]) -> list[dict[str, Any]]:
    """Return the fields that all runs have in common, by section; what is not the default is marked."""
    flat, changed, apart = runs[0].experiment.flat(), unusual(runs[0].experiment), differing(runs)
    return [
        {
            "name": section,
            "fields": [
                {
                    "name": key,
                    "value": setting(flat[key]),
                    "changed": key in changed,
                    "about": cls.model_fields[field].description or "",
                }
                for key, (home, field) in FIELDS.items()
                if home == section and key not in apart
            ],
        }
        for section, cls in SECTIONS.items()
    ]


def changed(run: Run) -> list[tuple[str, str]]:
    """Return the fields that are not the defaults, with their values."""
    return [(key, setting(value)) for key, value in unusual(run.experiment).items()]


def machines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the facts of every machine that ran any of the runs, with the numbers of these."""
    found: dict[str, dict[str, Any]] = {}
    told = ("machine", "packages", "data") if len(runs) == 1 else ("machine", "packages")
    for run in runs:
        facts: dict[str, Any] = {key: run.facts[key] for key in told if run.facts.get(key)}
        if memory := facts.get("machine", {}).get("memory"):  # how much is free changes all the time
            kept = {key: size for key, size in memory.items() if key != "available"}
            facts["machine"] = {**facts["machine"], "memory": kept}
        new = {"runs": [], "facts": list(flattened(facts)), "brief": _machine_in_brief(facts)}
        one = found.setdefault(json.dumps(facts, sort_keys=True, default=str), new)
        one["runs"].append(run.id)
    return [one for one in found.values() if one["facts"]]


def _machine_in_brief(facts: dict[str, Any]) -> str:
    machine = facts.get("machine") or {}
    cpu, memory = machine.get("cpu") or {}, machine.get("memory") or {}
    told = [cpu.get("model"), several(cpu["logical"], "logical core") if cpu.get("logical") else None]
    told += [storage(memory["total"]) if memory.get("total") else None, machine.get("platform")]
    told += [gpu.get("name") for gpu in machine.get("gpus") or []]
    versions = {"Python": machine.get("python"), "torch": (facts.get("packages") or {}).get("torch")}
    told += [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join(plain(str(one)) for one in told if one)


def flattened(facts: Any, *path: str) -> Iterable[tuple[str, str]]:
    """Yield nested facts as pairs of a name and a text; sizes of memory in a unit that suits them."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            yield from flattened(value, *path, str(key))
    elif isinstance(facts, list) and any(isinstance(one, dict | list) for one in facts):
        for at, value in enumerate(facts):
            yield from flattened(value, *path, str(at))
    elif facts is not None and facts != []:
        is_size = type(facts) is int and any("memory" in key or "bytes" in key for key in path)
        name = " ".join(path[1:] if path[0] == "machine" else path).replace("_", " ")
        listed = " ".join(map(str, facts)) if isinstance(facts, list) else str(facts)
        yield name, storage(facts) if is_size else plain(listed)


def happenings(run: Run) -> list[dict[str, str]]:
    """Return what the run said about itself, but for the epochs, which have a table of their own.

    In a simulation such things happen at no time of the virtual cluster, so none is told.
    """

    def moment(seconds: float) -> str:
        if run.clock == clocks.PREDICTED:
            return ""
        return duration(seconds) if seconds else "0 s"

    return [
        {"at": moment(event.at), "what": event.stage, "detail": _detail(event)}
        for event in run.lifecycle()
        if not isinstance(event, EpochEnded)
    ]


def warnings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what the runs warned of, each once, with the numbers of the runs that did."""
    found: dict[str, list[int]] = {}
    for run in runs:
        for text in dict.fromkeys(event.text for event in run.lifecycle() if isinstance(event, Warned)):
            found.setdefault(text, []).append(run.id)
    return [{"text": text, "runs": numbers} for text, numbers in found.items()]


def _detail(event: Lifecycle) -> str:
    """Return the facts of a stage as text; the numbers of folds are left to their own table."""
    match event:
        case Recorded():
            return f"run {event.run}"
        case Started():
            sizes = f"batch size {count(event.batch_size)}, {several(event.workers, 'worker')}"
            return (
                f"{several(event.steps_per_epoch, 'step')} per epoch, {sizes}, {several(event.train_samples, 'sample')}"
            )
        case FoldsStarted():
            return f"{several(len(event.names), 'fold')}, {plain(event.mode.replace('-', ' '))}"
        case FoldChanged():
            error = f": {plain(event.error)}" if event.error else ""
            return f"{name_of([facts_of(event)], 0)} {event.status}{error}"
        case Ended():
            return event.error
        case Note() | Warned() | WorkerDropped():
            return event.text
    return ""


def state(run: Run) -> str:
    """Return what is to be known about a run that did not end well: how it ended, or that nothing was measured."""
    nothing = "" if run.history or run.metrics or run.status == "running" else "nothing was measured in this run"
    return "\n".join(line for line in (summary.ending(run), nothing) if line)
