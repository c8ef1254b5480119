"""`tenfold compare` and `tenfold sweep`, and the grids of values that they share with `simulate`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.options import parse_setting, parse_value
from tenfold.cli.output import exit_interrupted, exit_partial, print_rich, start_early
from tenfold.errors import ExperimentError

if TYPE_CHECKING:
    from tenfold.reports.comparison import Comparison
    from tenfold.reports.exports import Result
    from tenfold.reports.progress import GridProgress


GRID = "The grid: values separated by commas"
ELLIPSIS = "..."


class Form(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def several(text: str) -> list[Any]:
    """Read "a,b,c", a row such as "1,2,4,...,64", a TOML table, or a TOML list of values that hold commas."""
    whole = parse_value(text)
    if isinstance(whole, list | dict):
        return whole if isinstance(whole, list) else [whole]
    parts = [word.strip() for word in text.split(",")]
    return _row(text, parts) if ELLIPSIS in parts else [parse_value(part) for part in parts]


def _row(text: str, parts: list[str]) -> list[int]:
    """Continue a sequence by the factor, or else the step, of the last two numbers before the dots, up to the last."""
    place = parts.index(ELLIPSIS)
    numbers, ends = [parse_value(part) for part in parts[:place]], [parse_value(part) for part in parts[place + 1 :]]
    whole = all(isinstance(item, int) and item > 0 for item in (*numbers, *ends))
    if not whole or len(numbers) < 2 or len(ends) != 1 or not numbers[-2] < numbers[-1] <= ends[0]:
        raise ExperimentError(f"'{text}' is not a sequence of numbers; write it as 1,2,4,...,64 or 2,4,6,...,10")
    before, last, end = numbers[-2], numbers[-1], ends[0]
    by_factor = last % before == 0 and (len(numbers) < 3 or numbers[-3] * last == before * before)
    while (following := last * (last // before) if by_factor else 2 * last - before) < end:
        before, last = last, following
        numbers.append(last)
    return numbers if numbers[-1] == end else [*numbers, end]


def varied(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not (equals and name.strip() and values.strip()):
        raise ExperimentError(f"expected field=a,b, such as momentum=0,0.9, got '{text}'")
    short, listed = short_name(name.strip().replace("-", "_")), several(values.strip())
    if _takes_list(short) and not any(isinstance(item, list) for item in listed):
        lists = [[item] for item in listed]
        raise ExperimentError(f"each value of {short} is a list; write a list of lists, such as {short}={lists}")
    return short, listed


def _takes_list(name: str) -> bool:
    """Return whether one value of a field is a list."""
    from tenfold.experiment import FIELDS, SECTIONS
    from tenfold.experiment.values import TakesList

    if name not in FIELDS:
        return False
    section, field = FIELDS[name]
    return any(isinstance(item, TakesList) for item in SECTIONS[section].model_fields[field].metadata)


def settings_together(texts: list[str] | None) -> list[dict[str, Any]]:
    """Read "field=a other=b", settings that change together."""
    groups = [dict(map(parse_setting, text.split())) for text in texts or []]
    if not all(groups):
        raise ExperimentError("expected settings that change together, such as --together 'pin=0,1 threads=2'")
    return [{short_name(name): value for name, value in item.items()} for item in groups]


def grid_of(given: dict[str, str | None], vary: list[str] | None, settings: list[str] | None) -> dict[str, list[Any]]:
    """Return the grid that options and --vary describe; no field may be given twice, there or by --set."""
    grid = {name: several(text) for name, text in given.items() if text is not None}
    for name, values in map(varied, vary or []):
        if name in grid:
            raise ExperimentError(f"{name} is given twice; list all its values in one place: {name}=a,b")
        grid[name] = values
    for name in (short_name(parse_setting(text)[0]) for text in settings or []):
        if name in grid:
            raise ExperimentError(f"{name} is given twice, in the grid and by --set; give it once")
    return grid


def with_several_values(settings: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the settings of --set that have one value, and those that list several, which are varied."""
    from tenfold.experiment import Experiment, nested

    single_values: list[str] = []
    several_values: list[str] = []
    for text in settings or []:
        name, value = parse_setting(text)
        is_list = isinstance(value, str) and "," in value
        if is_list:
            with suppress(ExperimentError):  # a value that may have commas, such as pin=0,1
                Experiment(**nested({name: value}))
                is_list = False
        (several_values if is_list else single_values).append(text)
    return single_values, several_values


def short_name(name: str) -> str:
    """Return a field's short name, which may be given as it is or with its section."""
    from tenfold.experiment import FIELDS

    return {f"{section}.{field}": short for short, (section, field) in FIELDS.items()}.get(name, name)


@contextmanager
def watching(quiet: bool, on: object = None) -> "Iterator[GridProgress]":
    """Show the progress of a grid's runs, and say how to continue when it is interrupted."""
    from tenfold.reports.progress import GridProgress

    try:
        with GridProgress(quiet=quiet) as progress:
            yield progress
    except KeyboardInterrupt:
        exit_interrupted("run the same command again to continue", on)


def print_result(result: "Result", form: Form, report: Path | None = None) -> None:
    """Print a table of settings in the wanted form, and write its HTML report; exit with 3 if some runs failed."""
    if form is Form.TABLE:
        print_rich(result)
    else:
        typer.echo({"csv": result.to_csv, "json": result.to_json, "markdown": result.to_markdown}[form](), nl=False)
    if report is not None:
        typer.echo(f"the report is in {result.report(report)}", err=form is not Form.TABLE)
    from tenfold.reports.comparison import Comparison

    if isinstance(result, Comparison) and not result.complete:
        exit_partial(f"{result.failure_counts()}; run the same command again to repeat them")


@options.with_executor
@options.with_fields("name", "target", "seed", "pin", several=options.COMPARED, panel=GRID)
def compare(
    file: options.File = None,
    settings: options.Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", help="Values of any field: momentum=0,0.9.", metavar="FIELD=A,B,...", rich_help_panel=GRID
        ),
    ] = None,
    together: Annotated[
        list[str] | None,
        typer.Option(
            "--together",
            help="Settings that change together: 'pin=0,1 threads=2'; may be repeated.",
            metavar="'FIELD=A OTHER=B'",
            rich_help_panel=GRID,
        ),
    ] = None,
    where: options.Where | None = None,
    repeats: Annotated[int, typer.Option(help="Runs of each setting, with different seeds.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat runs that are recorded.")] = False,
    rerun_doubtful: Annotated[
        bool, typer.Option("--rerun-doubtful", help="Repeat runs that other programs disturbed.")
    ] = False,
    columns: options.Columns = None,
    select: options.Select = False,
    output: options.Report = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the result.")] = Form.TABLE,
    as_json: options.Json = False,
    runs: options.Runs = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    **fields: Any,
) -> None:
    """Train an experiment with every combination of settings, and show the results in one table.

    Recorded runs are not repeated: run the same command again to continue an interrupted comparison.

    Examples: [cyan]tenfold compare lenet.toml --workers 1,2,4 --strategy allreduce,butterfly --repeats 3[/],
    [cyan]tenfold compare lenet.toml --workers 1,2,4,8 --target 0.99 -o compare.html[/],
    [cyan]tenfold compare --data digits --lr 0.01,0.1 --vary momentum=0,0.9 -o compare.html[/]
    """
    given = {name: fields.pop(name) for name in options.COMPARED}
    settings, listed = with_several_values(settings)
    grid: dict[str, Any] = grid_of(given, [*(vary or []), *listed], settings)
    groups = settings_together(together)
    experiment = options.experiment_from(file, settings, **fields)
    if where is None:
        _start_early_for(grid)
    from tenfold.api.compare import compare as run_all

    on = where.open() if where is not None else "local"

    def run(*, again: bool, renew: bool) -> "Comparison":
        with watching(quiet, on) as shown:
            watch: dict[str, Any] = {"watch": shown.watch, "listen": shown.listen, "log": log}
            watch |= {"columns": options.split_names(columns), "select": select, "together": groups, "on": on}
            return run_all(experiment, repeats=repeats, runs=runs, fresh=again, rerun_doubtful=renew, **watch, **grid)

    result = run(again=fresh, renew=rerun_doubtful)
    form = Form.JSON if as_json else form
    if form is Form.TABLE and not rerun_doubtful and _wants_again(result):
        result = run(again=False, renew=True)
    print_result(result, form, output)


SPACE = "What varies: ranges and lists of values"


@options.with_executor
@options.with_fields("name", "target", "seed", several=options.SWEPT, panel=SPACE, metavar="LOW:HIGH[:log]|A,B,...")
def sweep(
    file: options.File = None,
    settings: options.Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            help="A range or values of any field: momentum=0:0.95, schedule=constant,cosine.",
            metavar="FIELD=...",
            rich_help_panel=SPACE,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="How many combinations of values to try.")] = 20,
    sampler: Annotated[
        str, typer.Option(help="How to choose them: tpe, random, grid, qmc, gp or cmaes; all but grid need Optuna.")
    ] = "tpe",
    objective: Annotated[
        str | None,
        typer.Option(help="What to optimize: a metric, seconds or seconds_to_target. Default: the first metric."),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Stop poor trials early, by successive halving.")] = False,
    where: options.Where | None = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            help="How many trials run at the same time with --on (default: 16), or step together.", show_default=False
        ),
    ] = None,
    stacked: Annotated[
        bool | None,
        typer.Option(
            "--stacked/--no-stacked",
            help="Train trials together that differ only in lr, momentum, weight_decay and seed; the default on a GPU.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new sweep even if the same one is recorded.")] = False,
    output: options.Report = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the result.")] = Form.TABLE,
    as_json: options.Json = False,
    log: options.Log = None,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
    **fields: Any,
) -> None:
    """Search for the best values of some fields, in trials that are recorded as runs.

    Run the same command again to continue an interrupted sweep, or with more --trials to extend it.

    Examples: [cyan]tenfold sweep lenet.toml --lr 1e-3:1e-1:log --batch-size 16,64,256 --trials 50[/],
    [cyan]tenfold sweep lenet.toml --lr 1e-3:1:log --vary momentum=0:0.95 --prune --on ray[/],
    [cyan]tenfold sweep lenet.toml --lr 0.01,0.1 --workers 1,2,4 --sampler grid --objective seconds_to_target
    --target 0.99[/]
    """
    given = {name: fields.pop(name) for name in options.SWEPT}
    lists = grid_of(given, vary, settings)
    experiment = options.experiment_from(file, settings, **fields)
    if where is None:
        _start_early_for(lists)
    from tenfold.api.sweep import sweep as run_all

    on = where.open() if where is not None else "local"

    space: dict[str, Any] = {field: values[0] if len(values) == 1 else values for field, values in lists.items()}
    with watching(quiet, on) as shown:
        about: dict[str, Any] = {"trials": trials, "sampler": sampler, "objective": objective, "prune": prune}
        about |= {"watch": shown.watch, "listen": shown.listen, "log": log, "on": on, "at_once": at_once}
        about |= {"stacked": stacked}
        result = run_all(experiment, runs=runs, fresh=fresh, **about, **space)
    print_result(result, Form.JSON if as_json else form, output)


def _wants_again(result: "Comparison") -> bool:
    """Offer to run marked rows again, if a person can answer."""
    if not (result.doubtful and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print_rich(result)
    count = len(result.doubtful)
    return typer.confirm(f"repeat the {count} marked run{'s' if count > 1 else ''}?", err=True)


def _start_early_for(grid: dict[str, list[Any]]) -> None:
    """Start the server of worker processes, if the grid needs one, while the rest is still being imported."""
    if "folds" in grid or any(isinstance(count, int) and count > 1 for count in grid.get("workers", [])):
        start_early()
