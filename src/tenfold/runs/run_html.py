"""What a notebook shows of a run."""

from typing import TYPE_CHECKING

from tenfold.common.html_views import facts_table, short_number, values_table

if TYPE_CHECKING:
    from tenfold.runs.run import Run

SHOWN_EPOCHS = 5
"""The number of epochs that are shown, counted from the last."""


def run_html(run: "Run") -> str:
    """Return a table of a run's results, and one with a row for each of its last epochs."""
    workers, epochs = run.result.get("workers"), run.result.get("epochs")
    part = run.result.get("part") or ""
    facts = [(f"{part} {name}".strip(), short_number(name, value)) for name, value in run.metrics.items()]
    facts += [("training", f"{run.seconds:.3g} s {run.clock}" if run.seconds is not None else "")]
    facts += [("workers", str(workers or "")), ("epochs", str(epochs or "")), ("tags", " ".join(run.tags))]
    facts += [("note", run.note), ("error", run.error.partition("\n")[0]), ("folder", str(run.path))]
    view = facts_table(f"run {run.id}: {run.title}, {run.status}", facts)
    rows = run.history[-SHOWN_EPOCHS:]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [[short_number(name, row.get(name)) for name in names] for row in rows]
    return view + (values_table([name.replace("_", " ") for name in names], shown) if rows else "")
