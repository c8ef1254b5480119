"""The section about the folds on the page of a cross-validation."""

from typing import Any

from tenfold.report.formatting import duration, metric_value, plural
from tenfold.report.pages.figures import mean_curves, run_figure
from tenfold.report.plots import palette
from tenfold.report.plots.charts import Chart
from tenfold.report.plots.fold_plots import fold_runs, fold_scores_plot, fold_timeline
from tenfold.report.tables.fold_tables import RecordedFold, folds_table, models_table, shown_metrics
from tenfold.report.tables.text_table import TextTable
from tenfold.runs import FoldChanged, Run
from tenfold.runs.fold_name import fold_name
from tenfold.runs.store import CROSSVAL

LANES = "fold-lanes"


def folds_section(run: Run) -> dict[str, Any] | None:
    """Return the contents of the section; None unless the run is a cross-validation with folds."""
    folds: list[RecordedFold] = run.result.get("folds") or []
    if run.kind != CROSSVAL or not folds:
        return None
    failed = sum(fold["status"] == "failed" for fold in folds)
    not_drawn = f" {plural(failed, 'fold')} failed and {'is' if failed == 1 else 'are'} not drawn." if failed else ""
    charts = fold_charts(run)
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
    changed = {event.fold_index: event for event in run.lifecycle() if isinstance(event, FoldChanged)}
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
    return TextTable(["fold", "state", "run", f"training, {run.clock}", *names], rows) if rows else None


def fold_figures(run: Run) -> list[dict[str, Any]]:
    """Return a figure for each fold with what was measured on its validation part, and one for their mean."""
    found: list[dict[str, Any]] = []
    for fold in _recorded_folds(run):
        place = fold.facts["crossval"]
        figure = run_figure(fold, fold_name(place["fold"], place["repeat"], place["node"]))
        evaluated = [curve for curve in figure["curves"] if curve["part"] != "train"]
        colour = palette.series(len(found))[0]
        found.append({**figure, "curves": evaluated, "lanes": None, "colour": colour, "dash": [2, 2]})
    if len(found) > 1:
        mean = mean_curves([figure["curves"] for figure in found])
        found.append({**found[0], "id": 0, "label": "mean over the folds", "curves": mean, "colour": None, "dash": []})
    return found


def _recorded_folds(run: Run) -> list[Run]:
    """Return the runs of the folds: those of the result, or while it is running, those recorded so far."""
    if run.result.get("folds"):
        return fold_runs(run)
    return [run.other(record["id"]) for record in run.store.folds(run.id)]
