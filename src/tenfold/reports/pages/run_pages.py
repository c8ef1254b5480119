"""The pages of a run, a forecast, a plan, a twin, a sweep and a scaling study."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.common.files import check_output
from tenfold.errors import ExperimentError, StoreError
from tenfold.reports import summary
from tenfold.reports.charts import Chart, PlotStyles
from tenfold.reports.comparison import Comparison
from tenfold.reports.comparison_rows import DOUBTS, Row, mean_seconds
from tenfold.reports.exports import to_csv, to_json
from tenfold.reports.forecast import (
    Forecast,
    ScalingStudy,
    Twin,
    find_knee,
    rows_with_rounds,
    scaling_families,
    signed_percent,
)
from tenfold.reports.formatting import count, date_time, duration, interval, metric_value, one_line, plural, ratio
from tenfold.reports.pages import sections
from tenfold.reports.pages.comparison_page import comparison_content, settings_table
from tenfold.reports.pages.page import download_link, page_figures, render_template, run_figure, save_page
from tenfold.reports.pages.sections import fold_charts, fold_figures, folds_section, folds_so_far, machine_section
from tenfold.reports.plan import Plan
from tenfold.reports.plots import (
    forecast_speedup_plot,
    has_bands,
    probe_plot,
    scaling_plot,
    share_plots,
    twin_timeline_plot,
)
from tenfold.reports.related_runs import (
    Baseline,
    choose_other,
    compare_runs,
    find_baseline,
    find_twin,
    offered_runs,
    similar_runs,
)
from tenfold.reports.run_tables import failed_folds, script_tables
from tenfold.reports.summary import model_quality
from tenfold.reports.sweep import Sweep, sweep_plots
from tenfold.reports.tables import SHARES
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL, SWEEP

NAMES = {CROSSVAL: "Cross-validation", SWEEP: "Sweep"}
"""Names of runs with subordinate runs, for page titles."""


def sweep_charts(run: Run) -> dict[str, Chart]:
    """Return the plots of a sweep by name; none for any other run."""
    return dict(sweep_plots(Sweep(run))) if run.kind == SWEEP else {}


def run_content(run: Run, figure: dict[str, Any] | None = None, *, whole: bool = True) -> dict[str, Any]:
    """Return the values for the page of one run; `figure` holds its measurements if they have been read already.

    If `whole` is false, the parts that do not change while it is running are omitted.
    """
    folded = run.kind == CROSSVAL
    figure = run_figure(run) if figure is None else figure
    drawn = fold_figures(run) if folded else [figure]
    bars = [{"label": "", "times": figure["times"]}] if figure["times"] else []
    quality = model_quality(run)
    baseline = find_baseline(run)
    about = sections.describe_run(run)
    title = sections.run_title(run)
    real = find_twin(run)
    of_folds = fold_charts(run)
    charts = {**of_folds, **sweep_charts(run), "twin": twin_timeline_plot(real, run) if real else None}
    return {
        "title": f"{NAMES[run.kind]} of {title}" if run.kind in NAMES else title,
        "subject": sections.page_title(run.experiment.replace(name="")),
        "eyebrow": f"run {run.id}",
        "status": run.status,
        "details": [*about["what"], about["began"]],
        "runs": [about],
        "headline": sections.sweep_headline(run) if run.kind == SWEEP else sections.run_headline(run, baseline),
        "doubts": [f"The speedup is doubtful: {DOUBTS[doubt]}." for doubt in (baseline.doubts if baseline else ())],
        "changed": sections.changed_settings(run),
        "folds": folds_section(run, of_folds),
        "folds_so_far": folds_so_far(run),
        "sweep": sections.sweep_section(run),
        "tables": script_tables(run),
        "prediction": summary.prediction_notes(run),
        "figures": page_figures(drawn, [run], charts, bars=bars, quality=quality),
        "learning": about_curves(run) if any(item["curves"] for item in drawn) else "",
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
    other = choose_other(run, baseline, similar)
    if other is None:
        return None
    return compare_runs(run, *other) | {"offered": offered_runs(similar, other[0].id)}


def about_curves(run: Run) -> str:
    if run.kind == CROSSVAL:
        return "Each fold on its validation part after each epoch, and the mean over the folds."
    lost = "".join(f" Vertical line: {loss}." for loss in summary.describe_lost_workers(run))
    counted = any("train_accuracy" in row for row in run.history)
    means = " (accuracy: the mean of each epoch)" if counted else ""
    return f"Thin lines: training batches{means}. Lines with markers: evaluated after each epoch.{lost}"


def _numbers(name: str, result: Plan | Forecast | ScalingStudy) -> list[dict[str, str]]:
    return [
        download_link(f"{name}.csv", "CSV", result.to_csv()),
        download_link(f"{name}.json", "JSON", result.to_json()),
    ]


def render_plan(plan: Plan) -> str:
    probes = probe_plot(plan.search.assessments, plan.search.metric, plan.target)
    content = {
        "title": f"Plan for {sections.page_title(plan.best)}",
        "eyebrow": "plan",
        "details": [plural(len(plan.rows), "setting"), "nothing recorded", "predicted"],
        "truth": summary.page_statement(plan.rows),
        "headline": _plan_headline(plan),
        "findings": plan.choice(),
        "table": plan.text_table(),
        "notes": plan.explanations(),
        "probes": probes is not None,
        "figures": page_figures([], plan.rows, {"probes": probes}),
        "downloads": _numbers("tenfold-plan", plan),
    }
    return render_template("plan.html", content)


def _plan_headline(plan: Plan) -> sections.Headline:
    seconds, metric = plan.predicted_seconds, plan.search.metric
    reached = f"{interval(*plan.interval, seconds)} of training, predicted"
    numbers = [(f"to {one_line(metric)} {metric_value(metric, plan.target)}", duration(seconds), reached)]
    numbers.append(("planning took", duration(plan.cost_seconds), "measured"))
    repaid = plan.repayment
    if repaid is not None and repaid.runs is not None:
        saved = f"{duration(repaid.seconds_saved)} saved per run"
        numbers.append(("pays off after", plural(repaid.runs, "run"), saved))
    return numbers


def render_forecast(forecast: Forecast) -> str:
    if not forecast.rows:
        raise ExperimentError("no prediction to report; give at least one setting")
    styles = PlotStyles(forecast.rows)
    links = ", ".join(dict.fromkeys(summary.describe_hardware(item.experiment) for item in forecast.forecasts))
    calibrated = "calibrated" if all(row.calibrated for row in forecast.rows) else "uncalibrated"
    speedup = forecast_speedup_plot(forecast.rows, styles, links)
    shares = {f"shares-{at}": chart for at, chart in enumerate(share_plots(forecast.rows))}
    first = forecast.forecasts[0].experiment
    content = {
        "title": f"Predicted speedup of {sections.page_title(first)}",
        "eyebrow": "forecast",
        "details": [plural(len(forecast.rows), "setting"), links, "no training", calibrated],
        "truth": summary.page_statement(forecast.rows),
        "headline": _forecast_headline(forecast),
        "table": settings_table(forecast, styles),
        "notes": forecast.explanations((SHARES,)),
        "speedup": speedup is not None,
        "bands": has_bands(forecast.rows),
        "knees": forecast.explanation(),
        "shares": list(shares),
        "figures": page_figures([], forecast.rows, {"speedup": speedup, **shares}),
        "reasons": forecast.reasons(),
        "fields": sections.common_fields(forecast.forecasts),
        "downloads": _numbers("tenfold-forecast", forecast),
    }
    return render_template("forecast.html", content)


def _forecast_headline(forecast: Forecast) -> sections.Headline:
    rows = rows_with_rounds(forecast.rows)
    which = "" if len(rows) == len(forecast.rows) else " with rounds"
    fastest = min(rows, key=mean_seconds)
    seconds = mean_seconds(fastest)
    around = f"{interval(*fastest.interval, seconds)}, " if fastest.interval else ""

    def named(row: Row) -> str:
        return f"{row.label}; {sections.DOUBTFUL}" if row.doubts else row.label

    numbers = [(f"shortest training{which}, predicted", duration(seconds), around + named(fastest))]
    if faster := [row for row in rows if row.workers > 1 and (row.speedup or 0.0) > 1]:
        top = max(faster, key=lambda row: row.speedup or 0.0)
        numbers.append((f"highest speedup{which}, predicted", ratio(top.speedup), named(top)))
    knees = [(name, first) for name, group in scaling_families(rows) if (first := find_knee(group).first)]
    if knees:
        name, last = max(knees, key=lambda knee: knee[1].workers)
        where = f"the highest of {len(knees)} settings: {name}" if len(knees) > 1 else name
        numbers.append(("workers where the speedup levels off", count(last.workers), where))
    return numbers


def render_scaling(scaling: ScalingStudy) -> str:
    charts = {
        "strong": scaling_plot(scaling.strong, "speedup T1/Tn", 1.0),
        "weak": scaling_plot(scaling.weak, "efficiency T1/Tn (%)", 100.0),
    }
    content = {
        "title": f"Scaling of {sections.page_title(scaling.experiment)}",
        "eyebrow": "scaling",
        "details": [f"{scaling.samples:,} samples per worker in weak scaling", f"predicted for {scaling.link}"],
        "truth": summary.page_statement(scaling.strong),
        "sentences": scaling.sentences(),
        "table": scaling.text_table(),
        "notes": scaling.notes(),
        "figures": page_figures([], scaling.strong, charts),
        "downloads": _numbers("tenfold-scaling", scaling),
    }
    return render_template("scaling.html", content)


def render_twin(twin: Twin) -> str:
    real, virtual = both = [twin.real, twin.virtual]
    lanes = twin_timeline_plot(real, virtual)
    name = f"tenfold-twin-{real.id}-{virtual.id}"
    content = {
        "title": f"{sections.page_title(real.experiment)}: real and virtual run",
        "eyebrow": f"twin, runs {real.id} and {virtual.id}",
        "details": [
            summary.describe_model(real),
            summary.describe_data(real),
            summary.describe_workers(real),
            date_time(real.created),
        ],
        "truth": summary.page_statement(both),
        "headline": [
            ("largest difference between the weights", *twin.weights().split(", ")),
            ("training time", duration(real.seconds), "measured"),
            ("training time", duration(virtual.seconds), summary.describe_clock(virtual)),
            ("error of the prediction", signed_percent(twin.error), "of the measured training time"),
        ],
        "table": twin.table(),
        "notes": twin.notes(),
        "timelines": lanes is not None,
        "figures": page_figures([], both, {"twin": lanes}),
        "prediction": summary.prediction_notes(virtual),
        "changed": sections.changed_settings(real),
        "downloads": [
            download_link(f"{name}.json", "JSON", twin.to_json()),
            download_link(f"{name}-trace.json", "Trace", json.dumps(twin.trace()), "Both timelines, for Perfetto"),
        ],
    }
    return render_template("twin.html", content)


def report(runs: Run | Sequence[Run] | Comparison, path: str | Path = "report.html") -> Path:
    """Write an HTML report on a run, or on several side by side, and return its path.

    It is one self-contained file with plots, tables and data to download. `runs` is a run, a list of runs such as
    `list_runs` returns, or the result of `compare`. A file of this name is replaced.
    """
    if isinstance(runs, Comparison):
        given: list[Any] = runs.runs
    else:
        given = list(runs) if isinstance(runs, list | tuple) else [runs]
    for item in given:
        if not isinstance(item, Run):
            what = f"a {type(item).__name__}"
            raise ExperimentError(f"report takes runs, not {what}; tenfold.open_run(number) returns one")
    check_output(Path(path), "a report", ".html", ".htm")
    return write_report(runs if isinstance(runs, Comparison) else given, path)


def write_report(runs: Sequence[Run] | Comparison, path: str | Path) -> Path:
    return save_page(render_report(runs), path)


def render_report(runs: Sequence[Run] | Comparison) -> str:
    comparison = runs if isinstance(runs, Comparison) else Comparison(runs)
    if not comparison.runs:
        raise StoreError("no run to report; `tenfold runs` lists the recorded runs")
    content = run_content(comparison.runs[0]) if len(comparison.runs) == 1 else comparison_content(comparison)
    return render_template("runs.html", common_content(comparison) | content | {"downloads": _downloads(comparison)})


def common_content(comparison: Comparison) -> dict[str, Any]:
    """Return the values that the pages of one run and of several share."""
    runs = comparison.runs
    many = len(runs) > 1
    each = ", each in its own run" if many and summary.clock_names(runs) == summary.MEASURED else ""
    return {
        "several": many,
        "folded": any(run.kind == CROSSVAL for run in runs),
        "clock": summary.clock_names(runs),
        "truth": summary.page_statement(runs) + each,
        "failures": comparison.failures() + ([] if many else failed_folds(runs[0])),
        "warnings": sections.warning_list(runs),
        "fields": sections.common_fields(runs),
        "machines": sections.machine_details(runs),
    }


def _downloads(comparison: Comparison) -> list[dict[str, str]]:
    runs = comparison.runs
    many = len(runs) > 1
    numbers = "-".join(str(run.id) for run in runs[:4]) + ("-and-more" if len(runs) > 4 else "")
    name = f"tenfold-run{'s' if many else ''}-{numbers}"
    downloads = [
        download_link(f"{name}.csv", "CSV", to_csv(runs)),
        download_link(f"{name}.json", "JSON", to_json(runs)),
    ]
    table = download_link(f"{name}-table.csv", "Table", comparison.to_csv(), "The table of settings as CSV")
    return [table, *downloads] if many else downloads
