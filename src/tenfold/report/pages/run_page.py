"""The page of one run: real, virtual, or a cross-validation."""

from typing import Any

from tenfold.report import summary
from tenfold.report.pages import sections
from tenfold.report.pages.folds_section import folds_section
from tenfold.report.plots import run_plots, timeline_plots
from tenfold.report.plots.styles import single_series
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL


def run_content(run: Run) -> dict[str, Any]:
    """Return what the page of one run shows."""
    series, names = [single_series(run)], run_plots.curve_metrics([run])
    about = sections.describe_run(run)
    title = sections.page_title(run.experiment)
    return {
        "title": f"Cross-validation of {title}" if run.kind == CROSSVAL else title,
        "eyebrow": f"run {run.id}",
        "status": run.status,
        "facts": [*about["what"], about["began"]],
        "runs": [about],
        "headline": sections.run_headline(run),
        "changed": sections.changed_settings(run),
        "folds": folds_section(run),
        "prediction": summary.prediction_notes(run),
        "losses": summary.describe_lost_workers(run),
        "curves": run_plots.learning_curves(series, names),
        "with_training": True,
        "time_split": run_plots.time_plot([("", summary.times_by_kind(run))], run.clock),
        "timelines": [("", svg)] if (svg := timeline_plots.timeline_plot(run)) else [],
    }
