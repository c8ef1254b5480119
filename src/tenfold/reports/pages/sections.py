"""The contents of a report's sections, as plain values for the templates."""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tenfold.common.metric_traits import describe_direction, loss_last, main_metric
from tenfold.errors import StoreError
from tenfold.experiment import FIELDS, SECTIONS, Experiment
from tenfold.reports import summary
from tenfold.reports.charts import SERIES, Chart, series
from tenfold.reports.differences import HasExperiment, changed_fields, differing_fields
from tenfold.reports.formatting import (
    byte_size,
    count,
    date_time,
    duration,
    field_value,
    grouped,
    joined,
    metric_value,
    one_line,
    plural,
    ratio,
)
from tenfold.reports.pages.page import mean_curves, run_figure
from tenfold.reports.plots import fold_runs, fold_scores_plot, fold_timeline
from tenfold.reports.related_runs import Baseline, find_single_worker
from tenfold.reports.run_tables import (
    RecordedFold,
    epochs_table,
    fold_mean_note,
    folds_table,
    models_table,
    shown_metrics,
)
from tenfold.reports.summary import pinned_cpus
from tenfold.reports.sweep import Sweep
from tenfold.reports.tables import TextTable
from tenfold.runs import Run, events
from tenfold.runs.run import fold_name
from tenfold.runs.store import CROSSVAL, SCRIPT, SWEEP

DOUBTFUL = "doubtful"
"""The word in a headline for times that should not be trusted."""
Headline = list[tuple[str, str, str]]
"""The most important numbers of a page: the name of each, the number as text, and a note."""


def run_headline(run: Run, baseline: Baseline | None) -> Headline:
    if run.status == "running":  # a resumed run still has the results of the interrupted one
        return []
    result = run.result
    numbers = []
    for name, value in loss_last(run.metrics).items():  # includes the direction of a less common metric
        better = "" if name in ("accuracy", "loss") else describe_direction(run.experiment.training.prefers_lower(name))
        note = joined(better, fold_mean_note(run, name))
        numbers.append((f"{summary.evaluated_part(run)} {one_line(name)}", metric_value(name, value), note))
    if run.seconds is not None:
        busiest = "of the busiest core" if run.kind == CROSSVAL else ""
        numbers.append(("training time", duration(run.seconds), joined(summary.describe_clock(run), busiest)))
    if baseline is not None:
        slower = "slower than" if baseline.speedup < 1 else "over"
        note = f"{slower} one worker, run {baseline.run.id}"
        note += ", per sample" if baseline.per_sample else ""
        note += f"; {DOUBTFUL}" if baseline.doubts else ""
        numbers.append((f"speedup, {run.clock}", ratio(baseline.speedup), note + _score_of(baseline.run, run)))
    elif "baseline_seconds" in result and "speedup" in result:
        alone = duration(result["baseline_seconds"])
        note = f"over one worker in {alone}, {run.clock}; {summary.describe_hardware(run.experiment)}"
        single = find_single_worker(run) if run.kind != SCRIPT else None
        note += _score_of(single, run) if single is not None else ""
        numbers.append((f"speedup, {run.clock}", ratio(result["speedup"]), note))
    if run.experiment.training.target is not None and run.seconds_to_target is not None:
        name = f"to the target {run.experiment.training.target:g}"
        numbers.append((name, duration(run.seconds_to_target), run.clock))
    if (speed := result.get("samples_per_second")) is not None:
        numbers.append(("samples per second", count(speed), run.clock))
    if "epochs" in result:
        steps = plural(result["steps"], "step") if "steps" in result else ""
        numbers.append(("epochs", count(result["epochs"]), steps))
    return numbers


def _score_of(single: Run, run: Run) -> str:
    """Return the end of a note: the main metric of the run of one worker that another run is compared with."""
    name = main_metric(run.metrics)
    if name is None or name not in single.metrics:
        return ""
    return f"; {one_line(name)} of one worker {metric_value(name, single.metrics[name])}"


def page_title(experiment: Experiment) -> str:
    """Return the name of an experiment, or its model and data if it has none."""
    flat = experiment.flat()
    return one_line(experiment.name or f"{_object_name(flat['model'])} on {_object_name(flat['data'])}")


def run_title(run: Run) -> str:
    return page_title(run.experiment) if run.title == run.experiment.title else one_line(run.title)


def _object_name(value: object) -> str:
    """Return the name of a model or data for a title; arrays and similar objects have no name of their own."""
    text = field_value(value)
    name = text[1:-1] if text.startswith("<") and text.endswith(">") else text
    return "given data" if name in ("tuple", "list", "dict", "Tensor", "ndarray") else name


def describe_run(run: Run, label: str = "", part: str | None = None) -> dict[str, Any]:
    """Return the sections about a single run; `label` names its setting, `part` the data of its score."""
    metrics = run.metrics if part in (None, summary.evaluated_part(run)) else run.metrics_on(part)
    score = next(iter(loss_last(metrics).items()), ("accuracy", None))
    return {
        "id": run.id,
        "script": run.kind == SCRIPT,
        "label": label,
        "seed": run.experiment.training.seed,
        "status": run.status,
        "state": state_note(run),
        "began": date_time(run.created),
        "training": summary.training_time(run),
        "score": metric_value(*score),
        "speed": f"{count(run.result.get('samples_per_second'))} {run.clock}",
        "what": [
            *(summary.describe_model(run), summary.describe_data(run), summary.describe_workers(run)),
            *([f"learning rate {lr}"] if (lr := summary.describe_lr(run)) and run.kind != SWEEP else []),
        ],
        "epochs": epochs_table(run),
        "happenings": event_list(run),
        "command": run.metadata.get("command", ""),
        "code": run.metadata.get("code", ""),
    }


def common_fields(runs: Sequence[HasExperiment]) -> list[dict[str, Any]]:
    """Return the fields that are the same in all runs, by section, and whether they differ from the default.

    For scripts, which define their own model and training, only the fields that differ from the default.
    """
    flat, changed, apart = runs[0].experiment.flat(), changed_fields(runs[0].experiment), differing_fields(runs)
    of_script = getattr(runs[0], "kind", "") == SCRIPT
    return [
        {
            "name": section,
            "fields": [
                {
                    "name": key,
                    "value": field_value(flat[key]),
                    "changed": key in changed,
                    "about": cls.model_fields[field].description or "",
                }
                for key, (home, field) in FIELDS.items()
                if home == section and key not in apart and (key in changed or not of_script)
            ],
        }
        for section, cls in SECTIONS.items()
    ]


def changed_settings(run: Run) -> list[tuple[str, str]]:
    return [(key, field_value(value)) for key, value in changed_fields(run.experiment).items()]


def machine_details(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return details about each machine, with the numbers of its runs."""
    machines: dict[str, dict[str, Any]] = {}
    shown = ("machine", "packages", "data") if len(runs) == 1 else ("machine", "packages")
    for run in runs:
        details: dict[str, Any] = {key: run.metadata[key] for key in shown if run.metadata.get(key)}
        if memory := details.get("machine", {}).get("memory"):  # free memory is different for each run
            kept = {key: size for key, size in memory.items() if key != "available"}
            details["machine"] = {**details["machine"], "memory": kept}
        if cpu := details.get("machine", {}).get("cpu"):  # the layout of the cores has a section of its own
            details["machine"] = {**details["machine"], "cpu": {key: cpu[key] for key in cpu if key != "layout"}}
        new = {"runs": [], "details": list(flatten_details(details)), "brief": _machine_in_brief(details)}
        machine = machines.setdefault(json.dumps(details, sort_keys=True, default=str), new)
        machine["runs"].append(run.id)
    return [item for item in machines.values() if item["details"]]


def _machine_in_brief(details: dict[str, Any]) -> str:
    machine = details.get("machine") or {}
    cpu, memory = machine.get("cpu") or {}, machine.get("memory") or {}
    parts = [cpu.get("model"), plural(cpu["logical"], "logical core") if cpu.get("logical") else None]
    parts += [byte_size(memory["total"]) if memory.get("total") else None, machine.get("platform")]
    parts += [gpu.get("name") for gpu in machine.get("gpus") or []]
    versions = {"Python": machine.get("python"), "torch": (details.get("packages") or {}).get("torch")}
    parts += [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join(one_line(str(part)) for part in parts if part)


def flatten_details(details: Any, *path: str) -> Iterable[tuple[str, str]]:
    """Yield nested details as pairs of name and text; sizes of memory with a unit."""
    if isinstance(details, dict):
        for key, value in details.items():
            yield from flatten_details(value, *path, str(key))
    elif isinstance(details, list) and any(isinstance(item, dict | list) for item in details):
        for at, value in enumerate(details):
            yield from flatten_details(value, *path, str(at))
    elif details is not None and details != []:
        is_size = type(details) is int and any("memory" in key or "bytes" in key for key in path)
        name = " ".join(path[1:] if path[0] == "machine" else path).replace("_", " ")
        listed = " ".join(map(str, details)) if isinstance(details, list) else str(details)
        yield name, byte_size(details) if is_size else one_line(listed)


def event_list(run: Run) -> list[dict[str, str]]:
    """Return the events of a run as text, except for its epochs, which have a table of their own.

    Events of a simulation have no time on the virtual cluster, so they are shown without one.
    """

    def moment(seconds: float) -> str:
        if run.clock == summary.PREDICTED:
            return ""
        return duration(seconds) if seconds else "0 s"

    return [
        {"at": moment(event.at), "what": event.stage, "detail": _detail(event)}
        for event in run.lifecycle()
        if not isinstance(event, events.EpochEnded)
    ]


def warning_list(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each warning once, with the numbers of its runs."""
    texts = (
        (run, dict.fromkeys(item.text for item in run.lifecycle() if isinstance(item, events.Warned))) for run in runs
    )
    runs_by_text = grouped((text, run.id) for run, listed in texts for text in listed)
    return [{"text": text, "runs": numbers} for text, numbers in runs_by_text.items()]


def _detail(event: events.Lifecycle) -> str:
    """Return the details of a stage as text; the numbers of folds are left to their own table."""
    match event:
        case events.Recorded():
            return f"run {event.run}"
        case events.Started():
            sizes = f"batch size {count(event.batch_size)}, {plural(event.workers, 'worker')}"
            return (
                f"{plural(event.steps_per_epoch, 'step')} per epoch, {sizes}, {plural(event.train_samples, 'sample')}"
            )
        case events.FoldsStarted():
            return f"{plural(len(event.names), 'fold')}, {one_line(event.mode.replace('-', ' '))}"
        case events.FoldChanged():
            error = f": {one_line(event.error)}" if event.error else ""
            return f"{fold_name(event.fold, event.repeat, event.node)} {event.status}{error}"
        case events.Ended():
            return event.error
        case events.Note() | events.Warned() | events.WorkerDropped() | events.WorkerJoined():
            return event.text
    return ""


def state_note(run: Run) -> str:
    """Return the reason why a run is not finished, and whether nothing was measured; empty for a finished run."""
    expects_nothing = run.kind == SCRIPT or run.status == "running"
    nothing = "" if run.history or run.metrics or expects_nothing else "nothing was measured in this run"
    return "\n".join(line for line in (summary.describe_end(run), nothing) if line)


LANES = "fold-lanes"


def folds_section(run: Run, charts: Collection[str]) -> dict[str, Any] | None:
    """Return the contents of the section, given the names of its charts; None unless the run has folds."""
    folds: list[RecordedFold] = run.result.get("folds") or []
    if run.kind != CROSSVAL or not folds:
        return None
    failed = sum(fold["status"] == "failed" for fold in folds)
    not_drawn = f" {plural(failed, 'fold')} failed and {'is' if failed == 1 else 'are'} not drawn." if failed else ""
    return {
        "strips": [name for name in charts if name != LANES],
        "about": f"One point per fold; the diamond is the mean, the line its 95% interval.{not_drawn}",
        "table": folds_table(run),
        "models": models_table(run),
        "lanes": LANES in charts,
    }


def fold_charts(run: Run) -> dict[str, Chart]:
    """Return the charts of the section by name; none unless the run is a cross-validation with folds."""
    if run.kind != CROSSVAL or not run.result.get("folds"):
        return {}
    strips = {f"strip-{at}": fold_scores_plot(run, name) for at, name in enumerate(shown_metrics(run))}
    charts: dict[str, Chart | None] = {**strips, LANES: fold_timeline(run)}
    return {name: chart for name, chart in charts.items() if chart is not None}


def folds_so_far(run: Run) -> TextTable | None:
    """Return a table of the folds of a running cross-validation; None for any other run."""
    if run.kind != CROSSVAL or run.result.get("folds"):
        return None
    changed = {event.fold_index: event for event in run.lifecycle() if isinstance(event, events.FoldChanged)}
    names = list(dict.fromkeys(name for event in changed.values() for name in event.metrics))
    rows = [
        [
            fold_name(event.fold, event.repeat, event.node),
            event.error or event.status,
            "" if event.run is None else str(event.run),
            duration(event.seconds),
            *(metric_value(name, event.metrics.get(name)) for name in names),
        ]
        for _, event in sorted(changed.items())
    ]
    return TextTable(["fold", "state", "run", "training, measured", *names], rows) if rows else None


def fold_figures(run: Run) -> list[dict[str, Any]]:
    """Return a figure for each fold with the metrics on its validation part, and one for their mean."""
    figures: list[dict[str, Any]] = []
    in_result = bool(run.result.get("folds"))  # otherwise the folds recorded so far
    for fold in fold_runs(run) if in_result else [run.other(record["id"]) for record in run.store.folds(run.id)]:
        place = fold.metadata["crossval"]
        figure = run_figure(fold, fold_name(place["fold"], place["repeat"], place["node"]))
        evaluated = [curve for curve in figure["curves"] if curve["part"] != "train"]
        color = series(len(figures))[0]
        figures.append({**figure, "curves": evaluated, "lanes": None, "color": color, "dash": [2, 2]})
    if len(figures) > 1:
        mean = mean_curves([figure["curves"] for figure in figures])
        figures.append(
            {**figures[0], "id": 0, "label": "mean over the folds", "curves": mean, "color": None, "dash": []}
        )
    return figures


def sweep_section(run: Run) -> dict[str, Any] | None:
    if run.kind != SWEEP:
        return None
    about = "Each line is a trial: the stronger its color, the better; dashed ones were pruned."
    sweep = Sweep(run)
    return {"table": sweep.text_table(), "lines": sweep.remarks(), "about": about}


def sweep_headline(run: Run) -> Headline:
    sweep = Sweep(run)
    ended = [trial for trial in sweep.trials if trial.status != "running"]
    numbers = [("trials", count(len(ended)), f"sampler {run.metadata['sweep']['sampler']}")]
    numbers.append(("training time of all", duration(sum(trial.seconds or 0.0 for trial in ended)), run.clock))
    with suppress(StoreError):
        best = sweep.best
        numbers.insert(0, (f"best {sweep.heading}", sweep.written(best.value), f"trial {best.number}: {best.label}"))
    return numbers


MOST_ALONE = 4
"""The memory of more workers than this is shown as a range."""


def machine_section(run: Run) -> dict[str, Any] | None:
    """Return the machine's cores with the workers on them, and the memory; None if nothing is known."""
    layout = _layout(run)
    peaks = _peak_lines(run)
    if not layout and not peaks:
        return None
    memory = (run.metadata.get("machine") or {}).get("memory") or {}
    named = {"total": "the machine has", "limit": "the container may use", "available": "free before the run"}
    return {
        "nodes": [
            {"name": f"NUMA node {at}" if len(layout) > 1 else "", "cores": node} for at, node in enumerate(layout)
        ],
        "pinning": _pinning(run) if layout else "",
        "memory": peaks + [(name, byte_size(memory[key])) for key, name in named.items() if memory.get(key)],
    }


def _layout(run: Run) -> list[list[list[dict[str, Any]]]]:
    """Return the cpus of each core of each NUMA node: number, worker that was pinned to it, color."""
    cpu = (run.metadata.get("machine") or {}).get("cpu") or {}
    nodes = cpu.get("layout")
    if not isinstance(nodes, list) or run.clock == summary.PREDICTED:
        return []
    owners = {cpu: worker for worker, cpus in enumerate(pinned_cpus(run)) for cpu in cpus}

    def cell(number: int) -> dict[str, Any]:
        worker = owners.get(number)
        return {"cpu": number, "worker": worker, "color": "" if worker is None else SERIES[worker % len(SERIES)]}

    return [[list(map(cell, core)) for core in node] for node in nodes]


def _pinning(run: Run) -> str:
    pinned = sum(bool(cpus) for cpus in pinned_cpus(run))
    cores = run.metadata.get("cores")
    note = str(cores.get("note") or "") if isinstance(cores, dict) else ""
    if not pinned:
        return f"No worker was pinned: the system chose the cores. {note}".strip()
    return f"{plural(pinned, 'worker')} pinned; the cpus of one core stand in one box. {note}".strip()


def _peak_lines(run: Run) -> list[tuple[str, str]]:
    """Return pairs of name and text: the peak memory of the workers' processes."""
    peaks = [size for size in run.result.get("peak_memory") or [] if size]
    if not peaks:
        return []
    if run.clock == summary.PREDICTED:
        return [("peak of the simulation", byte_size(max(peaks)))]
    if len(peaks) > MOST_ALONE:
        return [(f"peak of {len(peaks)} workers", f"{byte_size(min(peaks))} to {byte_size(max(peaks))} each")]
    names = [f"peak of worker {worker}" for worker in range(len(peaks))] if len(peaks) > 1 else ["peak"]
    return [(name, byte_size(size)) for name, size in zip(names, peaks, strict=True)]
