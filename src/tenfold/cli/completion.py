"""What the shell completes after an option: members of a family, fields, runs. Nothing here imports torch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tenfold.runs import Run


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion from a list of names."""
    known = list(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def complete_list(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of the last name in a list that is separated by commas."""
    known = list(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def complete_field(incomplete: str) -> list[str]:
    """Complete the field of `--set field=value`."""
    from tenfold.experiment import FIELDS

    return [f"{name}=" for name in FIELDS if name.startswith(incomplete)]


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a tag that some run has."""
    tags = {tag for run in _recorded(context) for tag in run.tags}
    return [name for name in sorted(tags) if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Complete the number of a run, with its title, or the title."""
    recorded = _recorded(context)
    if recorded and "last".startswith(incomplete):
        yield "last", "the newest run"
    for run in reversed(recorded):
        if str(run.id).startswith(incomplete):
            yield str(run.id), run.title
    newest = {run.title: run.id for run in recorded if incomplete and run.title.startswith(incomplete)}
    for title, number in newest.items():
        yield title, f"run {number}"


def _recorded(context: typer.Context) -> "list[Run]":
    """Return the runs of the store that the command line names; none where it cannot be read."""
    import tenfold

    try:
        return tenfold.list_runs(runs=context.params.get("runs"))
    except tenfold.TenfoldError:
        return []
