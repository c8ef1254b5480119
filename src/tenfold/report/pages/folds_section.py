"""The section about the folds on the page of a cross-validation."""

from typing import Any

from tenfold.report.formatting import plural
from tenfold.report.pages.figures import mean_curves, run_figure
from tenfold.report.plots import palette
from tenfold.report.plots.fold_plots import fold_runs, fold_scores_plot, fold_timeline
from tenfold.report.tables.fold_tables import Fold, fold_name, folds_table, models_table, shown_metrics
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL


def folds_section(run: Run) -> dict[str, Any] | None:
    """Return the contents of the section; None unless the run is a cross-validation with folds."""
    folds: list[Fold] = run.result.get("folds") or []
    if run.kind != CROSSVAL or not folds:
        return None
    failed = sum(fold["status"] == "failed" for fold in folds)
    not_drawn = f" {plural(failed, 'fold')} failed and {'is' if failed == 1 else 'are'} not drawn." if failed else ""
    metrics = shown_metrics(run)
    return {
        "strips": [svg for name in metrics if (svg := fold_scores_plot(run, name))],
        "about": f"One point per fold; the diamond is the mean, the line its 95% interval.{not_drawn}",
        "table": folds_table(run),
        "models": models_table(run),
        "lanes": fold_timeline(run),
    }


def fold_figures(run: Run) -> list[dict[str, Any]]:
    """Return a figure for each fold with what was measured on its validation part, and one for their mean."""
    places = {fold["run"]: place for place, fold in enumerate(run.result.get("folds") or [])}
    found: list[dict[str, Any]] = []
    for fold in fold_runs(run):
        figure = run_figure(fold, fold_name(run.result["folds"], places[fold.id]))
        evaluated = [curve for curve in figure["curves"] if curve["part"] != "train"]
        colour = palette.series(len(found))[0]
        found.append({**figure, "curves": evaluated, "lanes": None, "colour": colour, "dash": [2, 2]})
    if len(found) > 1:
        mean = mean_curves([figure["curves"] for figure in found])
        found.append({**found[0], "id": 0, "label": "mean over the folds", "curves": mean, "colour": None, "dash": []})
    return found
