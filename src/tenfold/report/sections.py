"""What the sections of a report say: plain values, ready for the template."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tenfold.experiment import FIELDS, SECTIONS
from tenfold.report import palette, summary
from tenfold.report.compare import differing, labels, repeats, unusual
from tenfold.report.tables import group_labels, history_columns
from tenfold.report.words import count, duration, measure, plain, rate, setting, several, spread, storage
from tenfold.runs import Run

Row = list[str]


def headline(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the few numbers that matter most, each with its name and a note."""
    return _headline_of_one(runs[0]) if len(runs) == 1 else _headline_of_many(runs)


def _headline_of_one(run: Run) -> list[dict[str, str]]:
    result = run.result
    numbers = [_number(f"{summary.part(run)} {name}", measure(name, one)) for name, one in summary.scores(run).items()]
    if run.seconds is not None:
        numbers.append(_number("training time", duration(run.seconds), "measured"))
    if (speed := result.get("samples_per_second")) is not None:
        numbers.append(_number("samples a second", count(speed), "measured"))
    if "epochs" in result:
        steps = several(result["steps"], "step") if "steps" in result else ""
        numbers.append(_number("epochs", count(result["epochs"]), steps))
    if (size := summary.parameters(run)) is not None:
        numbers.append(_number("parameters", count(size)))
    return numbers


def _headline_of_many(runs: Sequence[Run]) -> list[dict[str, str]]:
    names = dict(zip((run.id for run in runs), labels(runs), strict=True))
    numbers = []
    for name, best, word in (("accuracy", max, "best"), ("loss", min, "lowest")):
        having = [run for run in runs if math.isfinite(run.metrics.get(name, math.nan))]
        if having:
            run = best(having, key=lambda run: run.metrics[name])
            numbers.append(
                _number(f"{word} {summary.part(run)} {name}", measure(name, run.metrics[name]), names[run.id])
            )
    timed = [(run.seconds, run) for run in runs if run.seconds is not None]
    if timed:
        seconds, run = min(timed, key=lambda pair: pair[0])
        numbers.append(_number("shortest training, measured", duration(seconds), names[run.id]))
    finished = sum(run.status == "finished" for run in runs)
    return [
        *numbers,
        _number("runs", count(len(runs)), "all finished" if finished == len(runs) else f"{finished} finished"),
    ]


def _number(name: str, value: str, note: str = "") -> dict[str, str]:
    return {"name": plain(name), "value": value, "note": note}


def epochs(run: Run) -> dict[str, Any]:
    """Return the per-epoch table: names of columns, and rows."""
    names = history_columns(run)
    rows = [
        [count(row["epoch"]), count(row.get("step")), duration(row.get("seconds"))]
        + [measure(name, row.get(name)) for name in names]
        for row in run.history
    ]
    return {"columns": ["epoch", "step", "training", *(name.replace("_", " ") for name in names)], "rows": rows}


def comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the table of all runs side by side, each with the colour of its curves."""
    names = list(dict.fromkeys(name for run in runs for name in summary.scores(run)))
    rows = [
        {
            "colour": palette.series(at)[0],
            "label": label,
            "id": run.id,
            "status": run.status,
            "cells": [
                *(measure(name, run.metrics.get(name)) for name in names),
                duration(run.seconds),
                rate(run.result.get("samples_per_second")),
            ],
        }
        for at, (run, label) in enumerate(zip(runs, labels(runs), strict=True))
    ]
    return {"columns": [*names, "training, measured", "speed, measured"], "rows": rows}


def over_seeds(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return mean and standard deviation of the runs that differ only in their seed; None if no two do."""
    groups = repeats(runs)
    if len(groups) == len(runs):
        return None
    names = list(dict.fromkeys(name for run in runs for name in summary.scores(run)))
    rows = []
    for label, group in zip(group_labels(groups), groups, strict=True):
        scores = [spread(name, [run.metrics[name] for run in group if name in run.metrics]) for name in names]
        rows.append([label, *scores, spread("seconds", [run.seconds for run in group if run.seconds is not None])])
    return {"columns": ["runs", *names, "training, measured"], "rows": rows}


def differences(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the table of fields in which the runs differ, one line a run."""
    fields = differing(runs)
    rows = [[f"{run.id}", *(setting(fields[key][at]) for key in fields)] for at, run in enumerate(runs)]
    return {"columns": ["run", *fields], "rows": rows if fields else []}


def fields(runs: Sequence[Run]) -> list[dict[str, Any]]:
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
    """Return what the run said about itself, but for the epochs, which have a table of their own."""
    return [
        {"at": duration(event.at) if event.at else "0 s", "what": event.what, "detail": _detail(event.detail)}
        for event in run.lifecycle()
        if event.what != "epoch"
    ]


def _detail(text: str) -> str:
    try:
        facts = json.loads(text)
    except ValueError:
        return text
    if not isinstance(facts, dict):
        return text
    return ", ".join(f"{key.replace('_', ' ')} {_amount(value)}" for key, value in facts.items())


def _amount(value: Any) -> str:
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else setting(value)


def state(run: Run) -> str:
    """Return what is to be known about a run that did not end well: how it ended, or that nothing was measured."""
    nothing = "" if run.history or run.metrics or run.status == "running" else "nothing was measured in this run"
    return "\n".join(line for line in (summary.ending(run), nothing) if line)
