"""The page of one run: real, virtual, or a cross-validation."""

from typing import Any

from tenfold.report import summary
from tenfold.report.compare_with import compare_runs, offered_runs
from tenfold.report.model_quality import model_quality
from tenfold.report.pages import figures, sections
from tenfold.report.pages.folds_section import fold_charts, fold_figures, folds_section, folds_so_far
from tenfold.report.pages.machine_section import machine_section
from tenfold.report.plots import timeline_plots
from tenfold.report.related_runs import Baseline, choose_other, find_baseline, find_twin, similar_runs
from tenfold.report.rows import DOUBTS
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL


def run_content(run: Run, figure: dict[str, Any] | None = None, *, whole: bool = True) -> dict[str, Any]:
    """Return what the page of one run shows; `figure` holds its measurements where they have been read already.

    Not `whole`: without the parts that do not change while it is running.
    """
    folded = run.kind == CROSSVAL
    figure = figures.run_figure(run) if figure is None else figure
    drawn = fold_figures(run) if folded else [figure]
    bars = [{"label": "", "times": figure["times"]}] if figure["times"] else []
    quality = model_quality(run)
    baseline = find_baseline(run)
    about = sections.describe_run(run)
    title = sections.run_title(run)
    real = find_twin(run)
    charts = {**fold_charts(run), "twin": timeline_plots.twin_timeline_plot(real, run) if real else None}
    return {
        "title": f"Cross-validation of {title}" if folded else title,
        "subject": sections.page_title(run.experiment.replace(name="")),
        "eyebrow": f"run {run.id}",
        "status": run.status,
        "facts": [*about["what"], about["began"]],
        "runs": [about],
        "headline": sections.run_headline(run, baseline),
        "doubts": [f"The speedup is doubtful: {DOUBTS[doubt]}." for doubt in (baseline.doubts if baseline else ())],
        "changed": sections.changed_settings(run),
        "folds": folds_section(run),
        "folds_so_far": folds_so_far(run),
        "prediction": summary.prediction_notes(run),
        "figures": figures.page_figures(drawn, [run], charts, bars=bars, quality=quality),
        "learning": about_curves(run) if any(one["curves"] for one in drawn) else "",
        "quality": quality is not None,
        "lanes": bool(figure["lanes"]["at"]),
        "twin": real.id if real is not None and charts["twin"] is not None else None,
        "timelines": [],
        "cores": machine_section(run),
        "console": run.console,
        "versus": comparison_with_other(run, baseline) if whole else None,
    }


def comparison_with_other(run: Run, baseline: Baseline | None) -> dict[str, Any] | None:
    """Return a run next to its baseline or the run before it, and the other runs it can be compared with."""
    similar = similar_runs(run)
    found = choose_other(run, baseline, similar)
    if found is None:
        return None
    return compare_runs(run, *found) | {"offered": offered_runs(similar, found[0].id)}


def about_curves(run: Run) -> str:
    """Return what explains the learning curves of a run."""
    if run.kind == CROSSVAL:
        return "Each fold on its validation part after each epoch, and the mean over the folds."
    lost = "".join(f" Vertical line: {loss}." for loss in summary.describe_lost_workers(run))
    counted = any("train_accuracy" in row for row in run.history)
    means = " (accuracy: the mean of each epoch)" if counted else ""
    return f"Thin lines: training batches{means}. Lines with markers: evaluated after each epoch.{lost}"
