"""The page of several runs, one row for each setting."""

from collections.abc import Sequence
from typing import Any

from tenfold.reports import plots, summary
from tenfold.reports.charts import Chart, LaneChart, PlotStyles
from tenfold.reports.comparison import Comparison, ResultTable
from tenfold.reports.comparison_rows import (
    Row,
    baseline_row,
    choose_rows,
    direction,
    is_clearly_faster,
    is_clearly_worse,
    mean_seconds,
    notable_rows,
    pareto_front,
    quality,
    rows_metric,
)
from tenfold.reports.formatting import (
    count,
    date_time,
    duration,
    field_value,
    joined,
    metric_value,
    name_some,
    one_line,
    plural,
    ratio,
)
from tenfold.reports.pages.page import mean_figure, page_figures
from tenfold.reports.pages.sections import DOUBTFUL, Headline, describe_run, page_title
from tenfold.reports.plots import first_steps, timeline_plot, total_seconds
from tenfold.reports.tables import OPTIONAL, SHARES, heat_maps

MOST_CURVES = 8
MOST_WITH_TRAINING = 3
"""With more settings than this, noisy training curves are not drawn, because they would hide the evaluation curves."""
MOST_NAMED = 12
EVALUATED = "Lines with markers: evaluated after each epoch."


def comparison_content(comparison: Comparison, each: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the values for the page of several runs; the figures in `each` replace the means of settings."""
    labeled = [(run, row.label, row.part) for row in comparison.rows for run in row.runs]
    titles = {page_title(run.experiment) for run in comparison.runs}
    compared = f"{plural(len(comparison.rows), 'setting')} compared"
    common = [
        {describe(run) for run in comparison.runs} for describe in (summary.describe_model, summary.describe_data)
    ]
    began = [date_time(item) for item in sorted(run.created for run in comparison.runs)]
    reasons = [
        (row.label, [str(why) for run in row.runs for why in run.result.get("reasons") or []])
        for row in comparison.rows
    ]
    return {
        **comparison_tables(comparison),
        "title": f"{titles.pop()}: {compared}" if len(titles) == 1 else compared,
        "runs": [describe_run(*each) for each in sorted(labeled, key=lambda each: each[0].id)],
        "details": [
            *(texts.pop() for texts in common if len(texts) == 1),
            " to ".join(dict.fromkeys((began[0], began[-1]))),
        ],
        "folds": None,
        "folds_so_far": None,
        "sweep": None,
        "tables": [],
        "prediction": summary.merge_reasons(reasons),
        **_plots(comparison, each),
    }


def comparison_tables(comparison: Comparison) -> dict[str, Any]:
    """Return the parts of the page that change while runs are running: headline and tables."""
    return {
        "headline": _headline(comparison),
        "table": settings_table(comparison, PlotStyles(comparison.rows)),
        "crosstables": comparison.crosstables() or heat_maps(comparison.rows),
        "notes": comparison.explanations((SHARES,)) + _speedup_note(comparison.rows) + comparison.choice(),
    }


def settings_table(results: ResultTable, styles: PlotStyles) -> dict[str, Any]:
    """Return the table of settings, each with the color of its curves and whether its numbers are doubtful."""
    table = results.text_table()
    colors = [styles.style(row).color or "var(--ink)" for row in results.rows]
    texts = [column.words for column in results.columns()]
    doubtful = [bool(row.doubts) for row in results.rows]
    return {
        "columns": list(zip(table.columns, texts, strict=True)),
        "rows": list(zip(colors, table.rows, doubtful, strict=True)),
        "optional": OPTIONAL,
    }


def _headline(comparison: Comparison) -> Headline:
    rows, runs = comparison.rows, comparison.runs
    numbers = _target_numbers(rows)
    metric = rows_metric(rows)
    timed = [row for row in rows if row.seconds.values]
    same_task = len({field_value(row.experiment.data.name) for row in rows}) == 1
    if timed and same_task:
        fastest = min(timed, key=mean_seconds)
        about = fastest.label  # with its metric, as the shortest training may be the least accurate
        if measured := fastest.metrics.get(metric):
            about = joined(about, f"{one_line(metric)} {metric_value(metric, measured.mean)}")
        others = [row for row in timed if row is not fastest and row.clock == fastest.clock]
        if ties := sum(not is_clearly_faster(fastest, row) for row in others):
            about += f"; {ties} more within the noise"
        about += f"; {DOUBTFUL}" if fastest.doubts else ""
        numbers.append((f"shortest training, {fastest.clock}", duration(mean_seconds(fastest)), about))
    if (top := _highest_speedup(rows, metric)) is not None:
        numbers.append((f"highest speedup, {top.clock}", ratio(top.speedup), _with_both_scores(top, rows, metric)))
    if others := [row for row in rows if row.factor_against_cpu is not None]:
        top = max(others, key=lambda row: row.factor_against_cpu or 0.0)
        name = f"highest factor against cpu, {top.clock}"
        numbers.append((name, ratio(top.factor_against_cpu), top.label))
    scored = [row for row in rows if metric in row.metrics and row.metrics[metric].values]
    if scored and same_task and (better := direction(scored, metric)):
        top = max(scored, key=lambda row: quality(row, metric))
        name = f"{'highest' if better.startswith('higher') else 'lowest'} {top.part} {one_line(metric)}"
        numbers.append((name, metric_value(metric, top.metrics[metric].mean), top.label))
    if (chosen := comparison.selected) is not None and metric in chosen.test_metrics:
        value = metric_value(metric, chosen.test_metrics[metric].mean)
        numbers.append((f"test {one_line(metric)}", value, f"selected: {chosen.label}"))
    finished = sum(run.status == "finished" for run in runs)
    ended = "all finished" if finished == len(runs) else f"{finished} finished"
    return [*numbers, ("settings", count(len(rows)), f"{plural(len(runs), 'run')}, {ended}")]


def _target_numbers(rows: Sequence[Row]) -> Headline:
    """Return the setting that reached the target soonest, and the highest speedup at equal quality."""
    reached = [row for row in rows if row.seconds_to_target.mean is not None]
    if not reached:
        return []
    soonest = min(reached, key=lambda row: row.seconds_to_target.mean or 0.0)
    name = f"first to reach the target {soonest.experiment.training.target:g}, {soonest.clock}"
    numbers = [(name, duration(soonest.seconds_to_target.mean), soonest.label)]
    faster = [row for row in reached if row.workers > 1 and (row.target_speedup or 0.0) > 1 and not row.doubts]
    if faster:
        top = max(faster, key=lambda row: row.target_speedup or 0.0)
        numbers.append((f"speedup to the target, {top.clock}", ratio(top.target_speedup), top.label))
    return numbers


def _highest_speedup(rows: Sequence[Row], metric: str) -> Row | None:
    """Return the row with the highest speedup above 1 that is neither doubtful nor less accurate than one worker."""
    faster = [row for row in rows if row.workers > 1 and (row.speedup or 0.0) > 1 and not row.doubts]
    as_good = [row for row in faster if not is_clearly_worse(row, baseline_row(row, rows) or row, metric)]
    return max(as_good, key=lambda row: row.speedup or 0.0, default=None)


def _with_both_scores(row: Row, rows: Sequence[Row], metric: str) -> str:
    """Return the label of a row with its metric next to the metric of its baseline of one worker."""
    alone = baseline_row(row, rows)
    if alone is None or metric not in row.metrics or metric not in alone.metrics:
        return row.label
    ours, theirs = (metric_value(metric, item.metrics[metric].mean) for item in (row, alone))
    return f"{row.label}; {one_line(metric)} {ours}, of one worker {theirs}"


def _speedup_note(rows: Sequence[Row]) -> list[str]:
    compared = [row for row in rows if row.workers > 1 and row.speedup is not None]
    slower = compared and all((row.speedup or 0.0) <= 1 for row in compared)
    if slower:
        return ["no setting with several workers is faster than one worker"]
    metric = rows_metric(rows)
    worse = [row for row in compared if is_clearly_worse(row, baseline_row(row, rows) or row, metric)]
    return [f"less accurate than one worker: {name_some([row.label for row in worse], MOST_NAMED)}"] if worse else []


def comparison_charts(comparison: Comparison) -> dict[str, Any]:
    """Return the plots of finished runs and the captions that depend on them: scaling, devices, speed and quality."""
    rows, styles = comparison.rows, PlotStyles(comparison.rows)
    groups = plots.device_groups(rows)
    side_by_side = plots.choose_groups(groups)
    metric = rows_metric(rows)
    charts: dict[str, Chart | None] = {
        "target": plots.target_plot(rows, styles),
        "speedup": plots.speedup_plot(rows, styles),
        "efficiency": plots.efficiency_plot(rows, styles),
        "devices": plots.devices_plot(side_by_side, styles),
        "tradeoff": plots.tradeoff_plot(rows, styles),
    }
    return {
        "charts": charts,
        "bars": [{"label": row.label, "times": row.times} for row in rows if row.times],
        "scaling": [name for name in ("speedup", "efficiency") if charts[name]],
        "devices_left_out": _left_out(list(groups), list(side_by_side)),
        "best": [
            (
                row.label,
                f"{duration(row.seconds.mean)} {row.clock}",
                f"{one_line(metric)} {metric_value(metric, row.metrics[metric].mean)}",
            )
            for row in pareto_front(rows)
        ],
    }


def _plots(comparison: Comparison, each: list[dict[str, Any]] | None) -> dict[str, Any]:
    rows, styles = comparison.rows, PlotStyles(comparison.rows)
    shown = choose_rows(rows, MOST_CURVES)
    drawn = each or [mean_figure(row, styles.style(row)) for row in shown]
    summed_up = comparison_charts(comparison)
    timelines = _timelines(rows)
    charts = summed_up.pop("charts") | {f"timeline-{at}": chart for at, (_, chart) in enumerate(timelines)}
    return {
        "figures": page_figures(drawn, comparison.runs, charts, bars=summed_up.pop("bars")),
        **summed_up,
        "learning": _about_curves(rows, shown, means=each is None) if any(item["curves"] for item in drawn) else "",
        "quality": False,
        "lanes": False,
        "timelines": [about for about, _ in timelines],
    }


def _about_curves(rows: Sequence[Row], shown: Sequence[Row], *, means: bool) -> str:
    training = "Thin lines: training batches. " if len(shown) <= MOST_WITH_TRAINING else ""
    if not means:
        return EVALUATED
    left_out = _left_out([row.label for row in rows], [row.label for row in shown])
    return f"{training}Lines with markers: evaluated after each epoch, mean over the repeats. {left_out}".rstrip()


def _left_out(names: Sequence[str], shown: Sequence[str]) -> str:
    """Return a sentence about the settings that are not drawn."""
    labels = [name for name in names if name not in shown]
    if not labels:
        return ""
    return (
        f"{len(shown)} of {len(names)} settings are drawn. Not drawn, as they are neither among the fastest nor among "
        f"the best: {name_some(labels, MOST_NAMED)}."
    )


def _timelines(rows: Sequence[Row]) -> list[tuple[str, LaneChart]]:
    """Return the first steps of the most notable settings on one time scale, each with a caption."""
    notable = [
        (why, row, total_seconds(first_steps(row.runs[0].spans()))) for why, row in notable_rows(rows) if row.runs
    ]
    until = max((seconds for _, _, seconds in notable), default=0.0)
    charts = [(timeline_plot(row.runs[0], until), row, why) for why, row, _ in notable]
    return [(f"{row.label} (run {row.runs[0].id}): {why}", chart) for chart, row, why in charts if chart]
