"""The page of a plan: the choice, the table that it was made from, and the learning curves behind it."""

from tenfold.report import clocks
from tenfold.report.formatting import duration, interval, metric_value, one_line, plural
from tenfold.report.pages import figures, sections
from tenfold.report.pages.page import download_link, render_template
from tenfold.report.plots.plan_plots import probe_plot
from tenfold.report.results.plan_result import Plan
from tenfold.report.tables.text_table import TextTable


def render_plan(plan: Plan) -> str:
    """Return the page as HTML."""
    probes = probe_plot(plan.search.assessments, plan.search.metric, plan.target)
    content = {
        "title": f"Plan for {sections.page_title(plan.best)}",
        "eyebrow": "plan",
        "facts": [plural(len(plan.rows), "setting"), "nothing recorded", "predicted"],
        "truth": clocks.page_statement(plan.rows),
        "headline": _headline(plan),
        "findings": plan.findings(),
        "table": TextTable(*plan.cells()),
        "notes": plan.explanations(),
        "probes": probes is not None,
        "figures": figures.page_figures([], plan.rows, {"probes": probes}),
        "downloads": [
            download_link("tenfold-plan.csv", "CSV", plan.to_csv()),
            download_link("tenfold-plan.json", "JSON", plan.to_json()),
        ],
    }
    return render_template("plan.html", content)


def _headline(plan: Plan) -> sections.Headline:
    seconds, metric = plan.predicted_seconds, plan.search.metric
    reached = f"{interval(*plan.interval, seconds)} of training, predicted"
    numbers = [(f"to {one_line(metric)} {metric_value(metric, plan.target)}", duration(seconds), reached)]
    numbers.append(("planning took", duration(plan.cost_seconds), "measured"))
    repaid = plan.repayment
    if repaid is not None and repaid.runs is not None:
        saved = f"{duration(repaid.seconds_saved)} saved per run"
        numbers.append(("earned back after", plural(repaid.runs, "run"), saved))
    return numbers
