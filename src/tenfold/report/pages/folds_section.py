"""The section about the folds on the page of a cross-validation."""

from typing import Any

from tenfold.report.formatting import plural
from tenfold.report.plots.fold_plots import fold_curves, fold_scores_plot, fold_timeline
from tenfold.report.tables.fold_tables import Fold, folds_table, models_table, shown_metrics
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
    curves = list(dict.fromkeys(["loss", *metrics]))
    return {
        "strips": [svg for name in metrics if (svg := fold_scores_plot(run, name))],
        "about": f"One point per fold; the diamond is the mean, the line its 95% interval.{not_drawn}",
        "curves": [svg for name in curves if (svg := fold_curves(run, name))],
        "table": folds_table(run),
        "models": models_table(run),
        "lanes": fold_timeline(run),
    }
