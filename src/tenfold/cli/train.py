"""Commands that train: `train`, `crossval`, `resume`, `demo`."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tenfold.cli import options
from tenfold.cli.output import exit_interrupted, following, launched_rank, print_run, start_early
from tenfold.common.imports import tenfold_command
from tenfold.errors import ExperimentError, MachineError

if TYPE_CHECKING:
    from tenfold.experiment import Experiment
    from tenfold.runs import Run
    from tenfold.runs.events import Emit, Event


ShowBoard = Annotated[bool, typer.Option("--board", help="Open a local web page that shows the run live.")]


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
        from tenfold.runs.events import Recorded

        def hear(event: "Event") -> None:
            if isinstance(event, Recorded) and self._address:
                self.show(f"run/{event.run}", f"run {event.run}")
            listen(event)

        return hear

    def show(self, page: str, what: str) -> None:
        import webbrowser

        if self._address:
            address = self._address.replace("/?", f"/{page}?")
            typer.echo(f"the board shows {what} at {address}", err=True)
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
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # the machine is very busy
                process.kill()


@options.with_executor
@options.with_fields(*options.OF_TRAINING)
def train(
    file: options.File = None,
    settings: options.Set = None,
    from_sweep: Annotated[
        str | None,
        typer.Option(
            "--from-sweep",
            help="Train the experiment of a sweep with its best values: a run, or last.",
            metavar="RUN",
            show_default=False,
            autocompletion=options.complete_run,
        ),
    ] = None,
    trust: options.Trust = False,
    runs: options.Runs = None,
    output: options.Report = None,
    log_ranks: options.LogRanks = None,
    where: options.Where | None = None,
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
    [cyan]tenfold train --from-sweep 12 --epochs 20[/],
    [cyan]torchrun --nproc-per-node 4 -m tenfold train lenet.toml[/],
    [cyan]tenfold train lenet.toml --workers 8 --on ray[/]
    """
    experiment = options.experiment_from(file, settings, _best_of_sweep(from_sweep, file, runs, trust=trust), **fields)
    if experiment.parallel.workers > 1 and launched_rank() is None and where is None:
        start_early()
    import tenfold
    from tenfold.launchers import detect_world
    from tenfold.reports.progress import RankTimes, RunProgress

    quiet = quiet or as_json or bool(launched_rank())
    world = detect_world()
    count = world.size if world is not None else experiment.parallel.workers
    ranks = RankTimes(options.ranks_from(log_ranks, count)) if log_ranks else None
    on = where.open() if where is not None else "local"
    with BoardWindow(runs, board) as window:
        with following(RunProgress(experiment, quiet=quiet, ranks=ranks), runs, quiet) as listen:
            run = tenfold.train(experiment, runs=runs, on=on, log=log, listen=window.watch(listen))
        print_run(run, as_json, output)


def _best_of_sweep(sweep: str | None, file: Path | None, runs: Path | None, *, trust: bool) -> "Experiment | None":
    """Return the experiment with the best values of a sweep; None where none is named."""
    if sweep is None:
        if trust:
            raise ExperimentError(
                "--trust requires --from-sweep; for a file, name the import path yourself: --set FIELD=PATH"
            )
        return None
    if file is not None:
        raise ExperimentError("--from-sweep uses the experiment of the sweep; omit the file, or copy the values")
    import tenfold
    from tenfold.runs.store import SWEEP

    recorded = [run for run in tenfold.list_runs(runs=runs) if run.kind == SWEEP] if sweep == "last" else []
    number = recorded[-1].id if recorded else sweep
    return tenfold.Sweep(tenfold.open_run(number, runs=runs, trust=trust)).best_experiment


@options.with_executor
@options.with_fields(*options.OF_FOLDS, *options.OF_TRAINING)
def crossval(
    file: options.File = None,
    settings: options.Set = None,
    where: options.Where | None = None,
    runs: options.Runs = None,
    output: options.Report = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train and validate a model on k folds in parallel, and record the results.

    Examples: [cyan]tenfold crossval lenet.toml --folds 10[/],
    [cyan]tenfold crossval lenet.toml --folds 10 --workers 4[/],
    [cyan]tenfold crossval --model mlp --data digits --folds 5 --fold-repeats 3[/],
    [cyan]tenfold crossval lenet.toml --workers 4 --fold-mode data-and-folds[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    if where is None or where.name == "processes":
        start_early()
    import tenfold
    from tenfold.reports.progress import FoldProgress

    quiet = quiet or as_json
    on = where.open() if where is not None else "local"
    with following(FoldProgress(quiet=quiet), runs, quiet, on) as listen:
        done = tenfold.cross_validate(experiment, runs=runs, on=on, log=log, listen=listen)
    print_run(done.run, as_json, output)


@options.with_executor
def resume(
    run: options.Reference = "last",
    runs: options.Runs = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Take over a run that seems to be in use; if another process is still training it, that process stops "
            "before its next write.",
        ),
    ] = False,
    trust: options.Trust = False,
    where: options.Where | None = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Resume an interrupted run from its last completed epoch, to the weights of an uninterrupted run.

    Examples: [cyan]tenfold resume 12[/], [cyan]tenfold resume last[/]
    """
    import tenfold
    from tenfold.api.train import executor_to_resume
    from tenfold.reports.progress import run_display
    from tenfold.runs.store import SWEEP

    interrupted = tenfold.open_run(run, runs=runs, trust=trust)
    quiet = quiet or as_json or bool(launched_rank())
    if interrupted.kind == SWEEP:
        _resume_sweep(interrupted, where, as_json, force=force, log=log, progress=not quiet)
        return
    shown = run_display(interrupted.experiment, quiet=quiet)
    on = (where or options.Where(executor_to_resume(interrupted.kind, interrupted.metadata))).open()
    with following(shown, runs, quiet, on) as listen:
        resumed = tenfold.resume(interrupted, on=on, log=log, listen=listen, force=force)
    print_run(resumed, as_json)


def _resume_sweep(interrupted: "Run", where: options.Where | None, as_json: bool, **given: Any) -> None:
    import tenfold
    from tenfold.cli.compare import Form, print_result
    from tenfold.executors.submitting import recorded_executor

    on = (where or options.Where(recorded_executor(interrupted.metadata))).open()
    try:
        done = tenfold.Sweep(tenfold.resume(interrupted, on=on, **given))
    except KeyboardInterrupt:
        exit_interrupted(f"`tenfold resume {interrupted.id}` continues it", on)
    print_result(done, Form.JSON if as_json else Form.TABLE)


def demo(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The network: lenet5, cnn, mlp or package:Class on MNIST; lstm, tabular or resnet on generated data.",
        ),
    ] = "lenet5",
    runs: options.Runs = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The report to write.", callback=options.check_report)
    ] = Path("report.html"),
    no_open: Annotated[bool, typer.Option("--no-open", help="Show the race on the terminal only.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Race a plain PyTorch loop, one worker, and a worker per core to 99% on MNIST.

    Each finish is predicted before the start. The board shows the race live, and afterwards the predicted speedup with
    1 to 64 machines; Ctrl-C ends it. It takes less than a minute; MNIST (11 MB) is downloaded once.

    Examples: [cyan]tenfold demo[/], [cyan]tenfold demo --no-open -o race.html[/]
    """
    from tenfold.board.demo import RaceDisplay, choose_task, prepare_race, run_race
    from tenfold.board.race import render_race
    from tenfold.reports.pages.page import save_page
    from tenfold.runs.store import Store, absolute

    def report(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    task = choose_task(model, report)  # before there is a store, which a wrong name does not need
    folder = Store(absolute(runs)).folder
    race, sides = prepare_race(task, folder, report)
    race.save(folder)
    with BoardWindow(folder, not no_open and can_open_browser()) as window:
        window.show("race", "the race")
        with RaceDisplay(race, quiet=quiet) as display:
            try:
                outcomes = run_race(race, sides, folder, display)
            except KeyboardInterrupt:
                exit_interrupted("`tenfold runs` lists what was recorded; `tenfold demo` starts another race")
            display.conclude(race.verdict(outcomes))
        typer.echo(f"the report is in {save_page(render_race(race, outcomes, folder), output)}")


def can_open_browser() -> bool:
    """Return whether a person looks at this terminal and a browser can be opened."""
    import webbrowser

    try:
        return sys.stdout.isatty() and webbrowser.get() is not None
    except webbrowser.Error:
        return False
