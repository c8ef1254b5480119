"""`tenfold plan`: find the setting that reaches a target soonest."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.grids import Form, print_result
from tenfold.cli.output import fetching, showing_progress
from tenfold.common.files import check_output


def _check_file(path: Path | None) -> Path | None:
    if path is not None:
        check_output(path, "the chosen experiment", ".toml")
    return path


def plan(
    file: options.File = None,
    settings: options.Set = None,
    target: options.Target = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="Plan for this virtual cluster, a TOML file. Default: this machine."),
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", help="Use at most this many workers. Default: as many as fit.")
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", help="Seconds for measuring step times and for training runs.")
    ] = 90.0,
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the chosen experiment to this file, .toml.", callback=_check_file),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write an HTML report.", callback=options.check_report)
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the settings.")] = Form.TABLE,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Find the workers, threads, batch size and averaging that reach a target soonest.

    Step times and short training runs predict how long each setting takes; trial runs with several seeds show how few
    epochs are enough. Nothing is recorded, and the result is a prediction.

    Examples: [cyan]tenfold plan lenet.toml --target 0.99 -o best.toml[/],
    [cyan]tenfold plan lenet.toml --target 0.99 --cluster lab.toml --max-workers 64[/]
    """
    experiment = options.experiment_from(file, settings, model=model, data=data, seed=seed)
    from tenfold.workers.pool.fork_server import start_server

    start_server()  # early: it imports torch while this process does
    from tenfold.api.plan import plan as find

    form = Form.JSON if as_json else form
    with showing_progress(quiet or form is not Form.TABLE) as show, fetching(quiet or form is not Form.TABLE) as bar:
        found = find(
            experiment,
            target=target,
            cluster=cluster,
            max_workers=max_workers,
            budget=budget,
            progress=show,
            fetching=bar,
        )
    print_result(found, form)
    if output is not None:
        found.best.save(output)
        how = f"`tenfold train {output}` runs it"
        if cluster is not None:
            how = f"`tenfold simulate {output} --cluster {cluster}` runs it there, `tenfold launch` on real hosts"
        typer.echo(f"the experiment is in {output}; {how}", err=form is not Form.TABLE)
    if report is not None:
        typer.echo(f"the report is in {found.report(report)}", err=form is not Form.TABLE)
