"""The pages of the board: the same templates as reports, with scripts that follow the runs."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tenfold.board.watch import Watch
from tenfold.common.files import short_path
from tenfold.errors import StoreError
from tenfold.report.compare_with import compare_runs
from tenfold.report.model_quality import model_quality
from tenfold.report.pages.comparison_page import EVALUATED, comparison_charts, comparison_content, comparison_tables
from tenfold.report.pages.figures import page_figures
from tenfold.report.pages.folds_section import fold_charts, fold_figures
from tenfold.report.pages.page import COMPARISON_CHARTS, COMPARISON_PARTS, RUN_PARTS, render_parts, render_template
from tenfold.report.pages.run_page import about_curves, run_content
from tenfold.report.pages.sections import state_note
from tenfold.report.pages.write_report import common_content
from tenfold.report.plots import palette
from tenfold.report.plots.charts import chart_data
from tenfold.report.results.comparison import Comparison
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL

MOST_COMPARED = 40
DOWNLOADS = {
    "csv": ("CSV", "All numbers as csv"),
    "json": ("JSON", "All numbers as json"),
    "trace.json": ("Trace", "What each worker did when, for Perfetto"),
    "html": ("Report", "This page as one file"),
}
"""By file ending, the label of a button that saves something of a run, and what it saves."""


class Pages:
    """Renders the pages of one folder of runs."""

    def __init__(self, watch: Watch, action_token: str) -> None:
        self.watch = watch
        self.action_token = action_token

    def runs(self) -> str:
        """Return the page with the table of all runs."""
        folder = str(short_path(self.watch.store.folder))
        content = {"title": "Runs", "facts": [folder], "truth": "Times were measured, unless marked as predicted"}
        return render_template("board.html", content | {"board": self._board("runs.js")})

    def run(self, number: int) -> str:
        """Return the page of one run."""
        run = self.watch.open(number)
        return render_template("runs.html", self._run_content(run))

    def run_parts(self, number: int) -> dict[str, str]:
        """Return the parts of a run's page that change while it is running."""
        return render_parts("runs.html", self._run_content(self.watch.open(number), whole=False), RUN_PARTS)

    def comparison(self, numbers: Sequence[int]) -> str:
        """Return the page of several runs side by side."""
        return render_template("runs.html", self._comparison_content(numbers))

    def comparison_parts(self, numbers: Sequence[int]) -> dict[str, str]:
        """Return the parts of the page of several runs that change while they are running; none if only one is left."""
        left = self._still_there(numbers)
        if len(left) < 2:
            return {}
        comparison = Comparison(left)
        states = {"runs": [{"id": run.id, "status": run.status, "state": state_note(run)} for run in comparison.runs]}
        content = common_content(comparison) | comparison_tables(comparison) | states
        return render_parts("runs.html", content, COMPARISON_PARTS)

    def comparison_charts(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the plots of several runs that change as these end, and the part of the page that holds them."""
        left = self._still_there(numbers)
        if len(left) < 2:
            raise StoreError("fewer than two of these runs are left")
        comparison = Comparison(left)
        content = comparison_charts(comparison)
        drawn = page_figures([], comparison.runs, content.pop("charts"), bars=content.pop("bars"))
        parts = render_parts("runs.html", content | {"figures": drawn, "clock": drawn["clock"]}, COMPARISON_CHARTS)
        return {"parts": parts, "plots": drawn["plots"], "bars": drawn["bars"]}

    def versus(self, number: int, other: int) -> str:
        """Return the table of two runs, with the fields in which they differ, as HTML."""
        compared = compare_runs(self.watch.open(number), self.watch.open(other))
        return render_parts("runs.html", {"versus": compared, "board": self._board("run.js")}, ("versus",))["versus"]

    def after_end(self, number: int) -> dict[str, Any]:
        """Return what a page shows of a run once it has ended: its model, and the plots of its folds."""
        run = self.watch.open(number)
        folds = fold_figures(run) if run.kind == CROSSVAL else []
        return {"quality": model_quality(run), "folds": folds, "plots": chart_data(fold_charts(run))}

    def _run_content(self, run: Run, *, whole: bool = True) -> dict[str, Any]:
        content = common_content(Comparison([run])) | run_content(run, self.watch.figure(run), whole=whole)
        following = _empty_panels(run, content) if run.status == "running" else {}
        downloads = [_link(run, kind, *about) for kind, about in DOWNLOADS.items()]
        return content | following | {"board": self._board("run.js", run=run.id), "downloads": downloads}

    def _still_there(self, numbers: Sequence[int]) -> list[Run]:
        """Return the runs that have not been removed since a page was opened."""
        found = []
        for number in dict.fromkeys(numbers[:MOST_COMPARED]):
            with suppress(StoreError):
                found.append(self.watch.open(number))
        return found

    def _compared(self, numbers: Sequence[int]) -> Comparison:
        runs = [self.watch.open(number) for number in dict.fromkeys(numbers)]
        if not 1 < len(runs) <= MOST_COMPARED:
            raise StoreError(f"2 to {MOST_COMPARED} runs can be compared, not {len(runs)}")
        return Comparison(runs)

    def _comparison_content(self, numbers: Sequence[int]) -> dict[str, Any]:
        comparison = self._compared(numbers)
        content = common_content(comparison) | comparison_content(comparison, self._each_figure(comparison))
        if any(run.status == "running" for run in comparison.runs):
            bars = content["figures"]["bars"] or [{"label": "", "times": {}}]
            content |= {"learning": content["learning"] or EVALUATED, "figures": content["figures"] | {"bars": bars}}
        return content | {"board": self._board("compare.js"), "downloads": []}

    def _each_figure(self, comparison: Comparison) -> list[dict[str, Any]]:
        """Return a figure for each run, as runs that are running are drawn one by one."""
        found: list[dict[str, Any]] = []
        for row in comparison.rows:
            for run in row.runs:
                label = row.label if len(row.runs) == 1 else f"{row.label}, run {run.id}"
                colour = palette.series(len(found))[0]
                found.append({**self.watch.figure(run, label=label), "colour": colour, "lanes": None})
        return found

    def _board(self, script: str, **facts: Any) -> dict[str, Any]:
        return {"action_token": self.action_token, "script": script, **facts}


def _empty_panels(run: Run, content: dict[str, Any]) -> dict[str, Any]:
    """Return the places of plots that a running run will fill."""
    folded = run.kind == CROSSVAL
    bars = content["figures"]["bars"] or ([] if folded else [{"label": "", "times": {}}])
    return {
        "learning": about_curves(run),
        "lanes": not folded,
        "quality": True,
        "console": "",
        "figures": content["figures"] | {"bars": bars},
    }


def _link(run: Run, kind: str, label: str, about: str) -> dict[str, str]:
    return {"name": f"tenfold-run-{run.id}.{kind}", "label": label, "about": about, "address": f"/run/{run.id}.{kind}"}
