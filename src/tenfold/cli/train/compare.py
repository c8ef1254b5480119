"""`tenfold compare`: one experiment over a grid of settings."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.grids import GRID, Form, Values, dimension, grid_of, print_side_by_side, settings_together, watching
from tenfold.cli.output import print_rich
from tenfold.common.catalog import MODELS, OPTIMIZERS, SOURCES, STRATEGIES
from tenfold.errors import ExperimentError

if TYPE_CHECKING:
    from tenfold.report.results.comparison import Comparison


def _check_plot(path: Path | None) -> Path | None:
    """Raise an error for a file that is not an image, before anything runs."""
    if path is not None:
        from tenfold.report.plots.pictures import check_picture

        check_picture(path)
    return path


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
            help="Settings that change together: 'pin=0,1 threads=2'. Give it once for each group.",
            metavar="'FIELD=A OTHER=B'",
            rich_help_panel=GRID,
        ),
    ] = None,
    workers: Annotated[Values, dimension("workers", "Replicas: 1,2,4.")] = None,
    strategy: Annotated[
        Values, dimension("strategy", "Who averages with whom: allreduce,butterfly.", STRATEGIES)
    ] = None,
    folds: Annotated[Values, dimension("folds", "Folds of a cross-validation: 2,5,10.")] = None,
    sync_every: Annotated[Values, dimension("sync-every", "Steps between rounds, or epoch: 1,16,epoch.")] = None,
    model: Annotated[Values, dimension("model", "Models: lenet5,cnn.", MODELS)] = None,
    data: Annotated[Values, dimension("data", "Data sets: digits,mnist.", SOURCES)] = None,
    epochs: Annotated[Values, dimension("epochs", "Passes over the data.")] = None,
    batch_size: Annotated[Values, dimension("batch-size", "Samples per step.")] = None,
    optimizer: Annotated[Values, dimension("optimizer", "Optimizers: sgd,adam.", OPTIMIZERS)] = None,
    lr: Annotated[Values, dimension("lr", "Learning rates.")] = None,
    loader_workers: Annotated[Values, dimension("loader-workers", "Processes that load batches: 0,4.")] = None,
    threads: Annotated[Values, dimension("threads", "Threads per worker.")] = None,
    device: Annotated[Values, dimension("device", "Devices: cpu,cuda.")] = None,
    name: options.Name = None,
    target: options.Target = None,
    seed: options.Seed = None,
    pin: options.Pin = None,
    repeats: Annotated[int, typer.Option(help="Runs of each setting, with different seeds.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat runs that are already recorded.")] = False,
    rerun_doubtful: Annotated[
        bool, typer.Option("--rerun-doubtful", help="Run rows again that other programs have disturbed.")
    ] = False,
    columns: options.Columns = None,
    select: options.Select = False,
    output: options.Report = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="With a target: also save accuracy against seconds as .svg, .png or .pdf.",
            callback=_check_plot,
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the result.")] = Form.TABLE,
    as_json: options.Json = False,
    runs: options.Runs = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
) -> None:
    """Run an experiment with every combination of settings, one after another, and show the results side by side.

    Runs that are already recorded are not repeated, so starting an interrupted comparison again continues it.

    Examples: [cyan]tenfold compare lenet.toml --workers 1,2,4 --strategy allreduce,butterfly --repeats 3[/],
    [cyan]tenfold compare lenet.toml --workers 1,2,4,8 --target 0.99 -o compare.html[/],
    [cyan]tenfold compare --data digits --lr 0.01,0.1 --vary momentum=0,0.9 -o compare.html[/]
    """
    given = {"workers": workers, "strategy": strategy, "folds": folds, "sync_every": sync_every, "model": model}
    given |= {"data": data, "epochs": epochs, "batch_size": batch_size, "optimizer": optimizer, "lr": lr}
    given |= {"loader_workers": loader_workers, "threads": threads, "device": device}
    grid: dict[str, Any] = grid_of(given, vary, settings)
    groups = settings_together(together)
    experiment = options.experiment_from(file, settings, name=name, seed=seed, pin=pin, target=target)
    if plot is not None and experiment.training.target is None and not any("target" in one for one in (grid, *groups)):
        raise ExperimentError("--plot shows how soon a target is reached, and there is none; add one: --target 0.99")
    _start_early(grid)
    from tenfold.api.compare import compare as run_all

    def run(*, again: bool, renew: bool) -> "Comparison":
        with watching(quiet) as shown:
            watch: dict[str, Any] = {"watch": shown.watch, "listen": shown.listen, "log": log}
            watch |= {"columns": options.split_names(columns), "select": select, "together": groups}
            return run_all(experiment, repeats=repeats, runs=runs, fresh=again, rerun_doubtful=renew, **watch, **grid)

    result = run(again=fresh, renew=rerun_doubtful)
    form = Form.JSON if as_json else form
    if form is Form.TABLE and not rerun_doubtful and _wants_again(result):
        result = run(again=False, renew=True)
    if plot is not None:
        typer.echo(f"the plot is in {result.plot(plot)}", err=form is not Form.TABLE)
    print_side_by_side(result, form, output)


def _wants_again(result: "Comparison") -> bool:
    """Offer to run marked rows again, if a person can answer."""
    if not (result.doubtful and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print_rich(result)
    count = len(result.doubtful)
    return typer.confirm(f"run {count} marked run{'s' if count > 1 else ''} again?", err=True)


def _start_early(grid: dict[str, list[Any]]) -> None:
    """Start the server of worker processes, if the grid needs one, while the rest is still being imported."""
    if "folds" in grid or any(isinstance(count, int) and count > 1 for count in grid.get("workers", [])):
        from tenfold.workers.pool.fork_server import start_server

        start_server()
