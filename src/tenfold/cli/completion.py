"""What the shell completes after an option: members of a family, fields, runs. Nothing here imports torch."""

from collections.abc import Callable, Iterable, Iterator

import typer


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
    import tenfold

    try:
        recorded = tenfold.list_runs(runs=context.params.get("runs"))
    except tenfold.TenfoldError:
        return []
    return [name for name in sorted({tag for run in recorded for tag in run.tags}) if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Complete the number of a run, with its title, or the title."""
    import tenfold

    try:
        recorded = tenfold.list_runs(runs=context.params.get("runs"))
    except tenfold.TenfoldError:
        return
    if "last".startswith(incomplete):
        yield "last", "the newest run"
    for run in reversed(recorded):
        if str(run.id).startswith(incomplete):
            yield str(run.id), run.title
    newest = {run.title: run.id for run in recorded if incomplete and run.title.startswith(incomplete)}
    for title, number in newest.items():
        yield title, f"run {number}"
