"""`tenfold simulate`: an experiment on a virtual cluster."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.grids import Form, Values, dimension, grid_of, print_side_by_side, watching
from tenfold.cli.output import following, print_run, showing_progress
from tenfold.common.catalog import STRATEGIES

if TYPE_CHECKING:
    from tenfold.experiment import Experiment

CLUSTER = "The virtual cluster"
GRIDDED = ("workers", "strategy", "sync_every")
"""Fields that may have several values here."""


@partial(options.with_fields, without=GRIDDED)
def simulate(
    file: options.File = None,
    settings: options.Set = None,
    workers: Annotated[Values, dimension("workers", "Nodes: 64, or several: 1,2,4,...,1024.")] = None,
    strategy: Annotated[
        Values, dimension("strategy", "Who averages with whom: allreduce,butterfly.", STRATEGIES)
    ] = None,
    sync_every: Annotated[Values, dimension("sync-every", "Steps between rounds, or epoch: 1,16,epoch.")] = None,
    link: Annotated[
        Values, dimension("link", "Links between the nodes: 1gbe, 10gbe, 25gbe, 100gbe, infiniband, ...")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="A TOML file that describes the nodes, or `here` for this machine.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    only_time: Annotated[
        bool,
        typer.Option(
            "--only-time",
            help="Predict the time only; do not train (tenfold.forecast in Python).",
            rich_help_panel=CLUSTER,
        ),
    ] = False,
    output: options.Report = None,
    form: Annotated[Form, typer.Option("--format", help="How to print several settings.")] = Form.TABLE,
    runs: options.Runs = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train on a virtual cluster: the weights are those of a real run, the time is predicted.

    Predictions use the profile that `tenfold calibrate` measured; steps that it lacks are measured first.

    Examples: [cyan]tenfold simulate lenet.toml --workers 64 --link 10gbe[/],
    [cyan]tenfold simulate lenet.toml --workers 8 --cluster edge.toml[/],
    [cyan]tenfold simulate lenet.toml --workers 1,2,4,...,1024 --only-time -o speedup.html[/]
    """
    experiment = options.experiment_from(file, settings, cluster=cluster, engine="virtual", **fields)
    given = {"workers": workers, "strategy": strategy, "sync_every": sync_every, "link": link}
    grid: dict[str, Any] = grid_of(given, None, settings)
    form = Form.JSON if as_json else form
    if only_time:
        from tenfold.api.forecast import forecast

        with showing_progress(quiet or form is Form.JSON) as show:
            predicted = forecast(experiment, progress=show, **grid)
        print_side_by_side(predicted, form, output)
        return
    from tenfold.workers.pool.fork_server import start_server

    start_server()  # early: it imports torch while this process does
    if any(len(values) != 1 for values in grid.values()):
        from tenfold.api.compare import compare

        with watching(quiet) as grid_watch:
            compared = compare(experiment, runs=runs, watch=grid_watch.watch, listen=grid_watch.listen, log=log, **grid)
        print_side_by_side(compared, form, output)
        return
    _one(experiment.replace(**{name: values[0] for name, values in grid.items()}), runs, log, quiet, as_json, output)


def _one(
    experiment: "Experiment", runs: Path | None, log: list[str] | None, quiet: bool, as_json: bool, output: Path | None
) -> None:
    import tenfold
    from tenfold.report.live.run_progress import RunProgress

    quiet = quiet or as_json
    with following(RunProgress(experiment, quiet=quiet), runs, quiet) as (listen, bar):
        run = tenfold.simulate(experiment, runs=runs, log=log, listen=listen, fetching=bar)
    from tenfold.api.simulation_baseline import accuracy_warning, recorded_baseline

    print_run(run, as_json, output)
    if (baseline := recorded_baseline(run)) is not None and not as_json:
        typer.echo(baseline.line(run))
    if warning := accuracy_warning(experiment, run):
        typer.secho(f"warning: {warning}", err=True, fg="yellow")
