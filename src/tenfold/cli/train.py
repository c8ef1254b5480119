"""Commands that train: `train`, `crossval`, `resume`."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tenfold.cli import options
from tenfold.cli.output import following, launched_rank, print_run
from tenfold.common.catalog import FOLD_KINDS, FOLD_MODES
from tenfold.common.imports import tenfold_command
from tenfold.errors import MachineError

if TYPE_CHECKING:
    from tenfold.runs import Emit, Event


ShowBoard = Annotated[bool, typer.Option("--board", help="Open a local page that shows the run as it trains.")]


class BoardWindow:
    """Serves a board while its `with` block lasts, and opens it on the run that is recorded.

    The board is a separate process, so that it takes no time from training. On a terminal it stays until Ctrl-C.
    """

    def __init__(self, runs: Path | None, wanted: bool) -> None:
        self._runs = runs
        self._wanted = wanted and not launched_rank()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    def __enter__(self) -> Self:
        if self._wanted:
            from tenfold.runs.store import absolute

            command = tenfold_command("board", "--runs", str(absolute(self._runs)), "--no-open")
            command += ["--until-stdin-ends"]  # which it does when this process does, however that happens
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            line = process.stdout.readline() if process.stdout is not None else ""
            self._address, self._process = line.partition("the board is at ")[2].strip(), process
            if not self._address:
                process.wait()
                raise MachineError("the board did not start, so nothing was trained")
        return self

    def watch(self, listen: "Emit") -> "Emit":
        """Return a listener that opens the page when the run has a number, and passes all events on."""
        from tenfold.runs import Recorded

        def hear(event: "Event") -> None:
            if isinstance(event, Recorded) and self._address:
                self._open(event.run)
            listen(event)

        return hear

    def _open(self, run: int) -> None:
        import webbrowser

        address = self._address.replace("/?", f"/run/{run}?")
        typer.echo(f"the board shows run {run} at {address}", err=True)
        webbrowser.open(address)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        try:
            if kind is None and sys.stdout.isatty():
                typer.echo("the board stays open until Ctrl-C", err=True)
                process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            process.terminate()
            process.wait(timeout=10)


@options.with_fields
def train(
    file: options.File = None,
    settings: options.Set = None,
    runs: options.Runs = None,
    output: options.Report = None,
    log_ranks: options.LogRanks = None,
    log: options.Log = None,
    board: ShowBoard = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train a model and record the run.

    Examples: [cyan]tenfold train lenet.toml[/], [cyan]tenfold train --model mlp --data digits --epochs 5[/],
    [cyan]tenfold train lenet.toml --set lr=0.1 --set schedule=cosine[/],
    [cyan]tenfold train lenet.toml --workers 16 --target 0.99[/],
    [cyan]tenfold train lenet.toml --workers 4 --strategy butterfly --sync-every 16 --pin compact[/],
    [cyan]tenfold train lenet.toml -o report.html[/], [cyan]tenfold train lenet.toml --board[/],
    [cyan]torchrun --nproc-per-node 4 -m tenfold train lenet.toml[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    if experiment.parallel.workers > 1 and launched_rank() is None:
        from tenfold.workers.fork_server import start_server

        start_server()  # early: it imports torch while this process does
    import tenfold
    from tenfold.launch.detect import detect_world
    from tenfold.reports.progress import RankTimes, RunProgress

    quiet = quiet or as_json or bool(launched_rank())
    world = detect_world()
    count = world.size if world is not None else experiment.parallel.workers
    ranks = RankTimes(options.ranks_from(log_ranks, count)) if log_ranks else None
    with BoardWindow(runs, board) as window:
        with following(RunProgress(experiment, quiet=quiet, ranks=ranks), runs, quiet) as (listen, bar):
            run = tenfold.train(experiment, runs=runs, log=log, listen=window.watch(listen), fetching=bar)
        print_run(run, as_json, output)


FOLDS = "How the folds are made and trained"
KINDS, MODES = ("auto", *FOLD_KINDS), ("auto", *FOLD_MODES)

Folds = Annotated[
    int | None, options.field("folds", "Number of folds; each is the validation part once. Default: 5.", FOLDS)
]
Kind = Annotated[str | None, options.field("fold-kind", f"{', '.join(KINDS)}.", FOLDS, KINDS)]
Repeats = Annotated[int | None, options.field("fold-repeats", "Repetitions, each with different folds.", FOLDS)]
Mode = Annotated[
    str | None,
    options.field("fold-mode", f"{', '.join(MODES)}.", FOLDS, MODES),
]


@options.with_fields
def crossval(
    file: options.File = None,
    settings: options.Set = None,
    folds: Folds = None,
    fold_kind: Kind = None,
    fold_repeats: Repeats = None,
    fold_mode: Mode = None,
    on: options.On = "local",
    runs: options.Runs = None,
    output: options.Report = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train and validate a model on k folds in parallel, and record the cross-validation and each fold.

    Examples: [cyan]tenfold crossval lenet.toml --folds 10[/],
    [cyan]tenfold crossval lenet.toml --folds 10 --workers 4[/],
    [cyan]tenfold crossval --model mlp --data digits --folds 5 --fold-repeats 3[/],
    [cyan]tenfold crossval lenet.toml --workers 4 --fold-mode data-and-folds[/]
    """
    folding = {"folds": folds, "fold_kind": fold_kind, "fold_repeats": fold_repeats, "fold_mode": fold_mode}
    experiment = options.experiment_from(file, settings, **fields, **folding)
    from tenfold.workers.fork_server import start_server

    if on == "local":
        start_server()  # early: it imports torch while this process does
    import tenfold
    from tenfold.reports.progress import FoldProgress

    quiet = quiet or as_json
    with following(FoldProgress(quiet=quiet), runs, quiet) as (listen, bar):
        done = tenfold.cross_validate(experiment, runs=runs, on=on, log=log, listen=listen, fetching=bar)
    print_run(done.run, as_json, output)


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
    from tenfold.reports.progress import FoldProgress, RunProgress
    from tenfold.runs.store import CROSSVAL

    interrupted = tenfold.open_run(run, runs=runs, trust=trust)
    quiet = quiet or as_json or bool(launched_rank())
    folded = interrupted.kind == CROSSVAL
    shown = FoldProgress(quiet=quiet) if folded else RunProgress(interrupted.experiment, quiet=quiet)
    with following(shown, runs, quiet) as (listen, _):
        resumed = tenfold.resume(interrupted, log=log, listen=listen, force=force)
    print_run(resumed, as_json)
