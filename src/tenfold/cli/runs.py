"""Commands that show and manage recorded runs: `runs`, `show`, `report`, `board`, `tag`, `untag`, `note`, `remove`."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich
from tenfold.errors import ExperimentError, StoreError


@contextmanager
def reading_records() -> Iterator[None]:
    """Raise StoreError if showing runs fails on a value that no run records: somebody has edited the store."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"a record has a value that Tenfold does not write ({type(error).__name__}: {error}); was the store "
            "edited? If not, please report this as a bug"
        ) from error


def runs(
    last: Annotated[int, typer.Option("--last", "-n", help="How many runs to list; 0 for all.")] = 20,
    folds: Annotated[
        bool, typer.Option("--folds", help="List the folds of cross-validations and the trials of sweeps, too.")
    ] = False,
    chosen: options.Filter = "",
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """List the recorded runs, newest last.

    Examples: [cyan]tenfold runs[/], [cyan]tenfold runs -n 0 --json[/], [cyan]tenfold runs --folds[/],
    [cyan]tenfold runs --filter "workers>=4 strategy=butterfly,ring accuracy>97%"[/],
    [cyan]tenfold runs -f "tag=paper age<7d"[/]
    """
    from tenfold.runs.open_run import list_runs, newest_runs
    from tenfold.runs.store import MEMBERS

    if last > 0 and not chosen:
        shown, total = newest_runs(last, runs=runs, members=folds)
    else:
        recorded = [run for run in list_runs(runs=runs, filter=chosen) if folds or run.kind not in MEMBERS]
        shown, total = recorded[-last:] if last > 0 else recorded, len(recorded)
    if as_json:
        print_json([run.summary() for run in shown])
        return
    if chosen and not shown:
        typer.echo(f"no runs match {chosen}")
        return
    from tenfold.reports.run_tables import RunsTable

    print_rich(RunsTable(shown))
    _print_jobs(runs)
    if len(shown) < total:
        typer.echo(f"{len(shown)} of {total} runs; `tenfold runs -n 0` lists all")


def _print_jobs(runs: Path | None) -> None:
    from tenfold.runs.store import absolute

    folder = absolute(runs)
    if not any(folder.glob("jobs/*/")):
        return
    from tenfold.executors.submitting import jobs_under_way
    from tenfold.reports.run_tables import jobs_table

    if jobs := jobs_under_way(folder):
        print_rich(jobs_table(jobs))


def show(
    run: options.Reference = "last",
    shards: Annotated[
        bool, typer.Option("--shards", help="Show how the training data were divided among the replicas.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Print the run's console output, the last 200 kB.")
    ] = False,
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Show a run: its experiment, epochs, times and files.

    Examples: [cyan]tenfold show 12[/], [cyan]tenfold show last --json[/], [cyan]tenfold show last --shards[/],
    [cyan]tenfold show last --console[/]
    """
    import tenfold
    from tenfold.reports.run_tables import fold_tables, shards_table, show_tables
    from tenfold.reports.sweep import Sweep
    from tenfold.runs.store import CROSSVAL, SWEEP

    with reading_records():
        opened = tenfold.open_run(run, runs=runs)
        if as_json:
            print_json(opened.summary() | {"history": opened.history, "metadata": opened.metadata})
        elif console:
            typer.echo(opened.console, nl=False)
        elif shards:
            print_rich(shards_table(opened))
        else:
            members = {CROSSVAL: fold_tables, SWEEP: Sweep}.get(opened.kind)
            print_rich(show_tables(opened), *([members(opened)] if members else []))


def report(
    references: options.References = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", callback=options.check_report)
    ] = Path("report.html"),
    columns: options.Columns = None,
    select: options.Select = False,
    chosen: options.Filter = "",
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Write an HTML report on one or more runs: a single file with plots, tables and data to download.

    Examples: [cyan]tenfold report last[/], [cyan]tenfold report 3 4 5 -o compare.html[/],
    [cyan]tenfold report 3 4 5 --columns test_accuracy,seconds,speedup[/],
    [cyan]tenfold report --filter "tag=paper status=finished" -o paper.html[/]
    """
    import tenfold
    from tenfold.reports.comparison import Comparison
    from tenfold.reports.pages.run_pages import write_report
    from tenfold.runs.store import MEMBERS

    opened = [tenfold.open_run(reference, runs=runs) for reference in references or ([] if chosen else ["last"])]
    if chosen:
        named = {run.id for run in opened}
        selected = tenfold.list_runs(runs=runs, filter=chosen)
        opened += [run for run in selected if run.kind not in MEMBERS and run.id not in named]
    if not opened:
        raise StoreError(f"no runs match {chosen}")
    if len(opened) == 1 and (columns or select):
        raise ExperimentError("--columns and --select need at least two runs")
    with reading_records():
        comparison = Comparison(opened)
        comparison = comparison.select() if select else comparison
        path = write_report(comparison.with_columns(*options.split_names(columns)) if columns else comparison, output)
    if as_json:
        print_json({"path": str(path), "runs": [run.id for run in opened]})
    else:
        typer.echo(f"the report is in {path}")


def board(
    runs: options.Runs = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", help="The port; 0 uses any free one. If 8642 is in use, any free one.", min=0, max=65535
        ),
    ] = 8642,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on. Other machines' access needs --token, and is not encrypted."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option("--token", help="The secret in the address. Default: a random one.", show_default=False),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    until_stdin_ends: Annotated[bool, typer.Option("--until-stdin-ends", hidden=True)] = False,
) -> None:
    """Show all runs on a local web page, live, until Ctrl-C.

    The page sorts, filters, groups and compares runs, and can stop, resume, tag and remove them. Opening it needs the
    address with its token.

    Examples: [cyan]tenfold board[/], [cyan]tenfold board --runs lab/runs --port 0 --no-open[/]
    """
    from tenfold.board.server import serve

    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True, name="tenfold-lifeline").start()

    def ready(address: str) -> None:
        typer.echo(f"the board is at {address}")
        typer.echo("Ctrl-C ends it; runs that are training continue")
        if not no_open:
            import webbrowser

            webbrowser.open(address)

    serve(runs, host=host, port=port, token=token, ready=ready)


def _end_with_stdin() -> None:
    """End the server when the process that started it is gone, which holds the other end of the pipe."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def tag(run: options.Reference, tags: options.Tags, runs: options.Runs = None) -> None:
    """Add tags to a run, to find it with `tenfold runs --filter`.

    Examples: [cyan]tenfold tag last paper[/], [cyan]tenfold tag 12 baseline mnist[/],
    [cyan]tenfold runs --filter tag=paper[/]
    """
    import tenfold

    opened = tenfold.open_run(run, runs=runs)
    opened.tag(*tags)
    typer.echo(f"run {opened.id}: {', '.join(opened.tags) or 'no tags'}")


def untag(run: options.Reference, tags: options.Tags, runs: options.Runs = None) -> None:
    """Remove tags from a run.

    Example: [cyan]tenfold untag 12 baseline[/]
    """
    import tenfold

    opened = tenfold.open_run(run, runs=runs)
    if unknown := [tag for tag in tags if tag not in opened.tags]:
        raise StoreError(f"run {opened.id} has no tag '{unknown[0]}'; it has {', '.join(opened.tags) or 'none'}")
    opened.untag(*tags)
    typer.echo(f"run {opened.id}: {', '.join(opened.tags) or 'no tags'}")


def note(
    run: options.Reference,
    text: Annotated[str, typer.Argument(help='The note, in quotes; "" removes it.')],
    runs: options.Runs = None,
) -> None:
    """Set the note of a run; `tenfold show` prints it.

    Example: [cyan]tenfold note last "with the fan on"[/]
    """
    import tenfold

    opened = tenfold.open_run(run, runs=runs)
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # in a locale without UTF-8
    opened.set_note(readable.strip())
    typer.echo(f"run {opened.id}: {opened.note or 'no note'}")


def remove(
    references: options.References = None,
    chosen: options.Filter = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    empty: Annotated[
        bool, typer.Option("--empty-trash", help="Permanently delete the folders of removed runs.")
    ] = False,
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Remove runs from the list, and move their folders to the trash folder beside them.

    Removing a cross-validation or a sweep also removes its folds or trials. The trash keeps weights and events.

    Examples: [cyan]tenfold remove 12 13[/], [cyan]tenfold remove --filter "status=failed age>7d" --yes[/],
    [cyan]tenfold remove --empty-trash[/]
    """
    import tenfold
    from tenfold.common.files import short_path
    from tenfold.errors import ExperimentError
    from tenfold.reports.formatting import byte_size, plural
    from tenfold.runs import Store
    from tenfold.runs.maintenance import empty_trash, remove_run, to_remove, trash_folder, trash_size

    if not (references or chosen or empty):
        raise ExperimentError("no runs given; give their numbers, or use --filter or --empty-trash")
    store = Store(runs, create=False)
    records = [store.find(reference) for reference in references or []]
    if chosen:
        selected = tenfold.list_runs(runs=runs, filter=chosen)
        records += [store.find(run.id) for run in selected if run.kind not in ("fold", "trial")]
    removed = {item["id"]: item for record in records for item in to_remove(store, record)}
    if removed and not yes:
        for record in removed.values():
            typer.echo(f"  run {record['id']}  {record['title']}  {record['status']}", err=True)
        _ask(f"remove {'this run' if len(removed) == 1 else f'these {len(removed)} runs'}?", "nothing was removed")
    for record in removed.values():
        remove_run(store, record)
    folders, size = trash_size(store)
    if empty and folders and not yes:
        _ask(f"delete {plural(folders, 'folder')} in the trash, {byte_size(size)}, for good?", "nothing was deleted")
    deleted, freed = empty_trash(store) if empty else (0, 0)
    if as_json:
        print_json({"removed": list(removed), "trash": str(trash_folder(store)), "freed_bytes": freed})
        return
    if removed or not empty:
        now = f"; {'it is' if len(removed) == 1 else 'they are'} in {short_path(trash_folder(store))}"
        typer.echo(f"removed {plural(len(removed), 'run')}{now if removed and not empty else ''}")
    if empty:
        typer.echo(f"emptied the trash: {plural(deleted, 'folder')}, {byte_size(freed)}")


def _ask(question: str, otherwise: str) -> None:
    """Ask for confirmation; if the answer is no, say that nothing was done and exit with 1."""
    try:
        answered = typer.confirm(question, err=True)
    except typer.Abort:  # nobody there to answer
        typer.echo("", err=True)
        answered = False
    if not answered:
        typer.echo(f"{otherwise}; --yes does it without asking", err=True)
        raise typer.Exit(1)
