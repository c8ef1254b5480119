"""`tenfold twin`: one experiment with real processes and on a virtual cluster, side by side."""

from typing import Any

import typer

from tenfold.cli import options
from tenfold.cli.output import exit_interrupted, print_json, print_rich


@options.with_fields
def twin(
    file: options.File = None,
    settings: options.Set = None,
    output: options.Report = None,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train with real processes and on a virtual cluster, and compare the weights and the times.

    Examples: [cyan]tenfold twin lenet.toml --workers 2[/],
    [cyan]tenfold twin best.toml --target 0.99[/],
    [cyan]tenfold twin --data digits --model mlp --workers 2 --strategy ring -o twin.html[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    from tenfold.workers.pool.fork_server import start_server

    start_server()  # early: it imports torch while this process does
    from tenfold.api.twin import twin as run_both
    from tenfold.report.live.run_progress import RunProgress

    try:
        with (
            RunProgress(experiment, quiet=quiet or as_json) as real,
            RunProgress(experiment.replace(engine="virtual"), quiet=True) as virtual,
        ):
            result = run_both(experiment, runs=runs, watch={"real": real.listen, "virtual": virtual.listen}.__getitem__)
    except KeyboardInterrupt:
        exit_interrupted("a twin needs both runs to finish; run the same command again")
    if as_json:
        print_json(result.record())
    else:
        print_rich(result)
    if output is not None:
        typer.echo(f"the report is in {result.report(output)}", err=as_json)
