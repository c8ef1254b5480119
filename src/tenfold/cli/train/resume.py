"""`tenfold resume`: continue an interrupted run."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import following, launched_rank, print_run


def resume(
    run: options.Reference = "last",
    runs: options.Runs = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Take over the run even if another process seems to work on it; if that process is still alive, it "
            "stops before its next write.",
        ),
    ] = False,
    trust: options.Trust = False,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Resume an interrupted run from its last completed epoch; the final weights are the same as without interruption.

    Examples: [cyan]tenfold resume 12[/], [cyan]tenfold resume last[/]
    """
    import tenfold
    from tenfold.report.live.fold_progress import FoldProgress
    from tenfold.report.live.run_progress import RunProgress
    from tenfold.runs.store import CROSSVAL

    interrupted = tenfold.open_run(run, runs=runs, trust=trust)
    quiet = quiet or as_json or bool(launched_rank())
    folded = interrupted.kind == CROSSVAL
    shown = FoldProgress(quiet=quiet) if folded else RunProgress(interrupted.experiment, quiet=quiet)
    with following(shown, runs, quiet) as (listen, _):
        resumed = tenfold.resume(interrupted, log=log, listen=listen, force=force)
    print_run(resumed, as_json)
