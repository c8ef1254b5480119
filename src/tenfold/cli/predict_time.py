"""Commands that predict how long training takes: `simulate`, `scaling`, `plan`, `twin`, `whatif`, `calibrate`."""

from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tenfold.cli import options
from tenfold.cli.compare import (
    GRID,
    Form,
    grid_of,
    print_result,
    short_name,
    watching,
    with_several_values,
)
from tenfold.cli.output import (
    exit_interrupted,
    fetching,
    following,
    print_json,
    print_rich,
    print_run,
    showing_progress,
    start_early,
)
from tenfold.common.files import check_output
from tenfold.errors import ExperimentError, MachineError

if TYPE_CHECKING:
    from tenfold.experiment import Experiment


CLUSTER = "The virtual cluster"
FileOrScript = Annotated[
    Optional[str],  # noqa: UP045 - typer reads this form for an argument that may be left out
    typer.Argument(
        help="An experiment file, or a torch.distributed script (.py). Default: all fields at their defaults.",
        show_default=False,
    ),
]
Arguments = Annotated[
    Optional[list[str]],  # noqa: UP045 - likewise
    typer.Argument(help="The script's own arguments, after --.", show_default=False),
]
Module = Annotated[
    str | None,
    typer.Option("-m", help="Run a torch.distributed module as a script, as `python -m` does.", metavar="MODULE"),
]
OfCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="A TOML file that describes the nodes, or `here` for this machine.", rich_help_panel=CLUSTER
    ),
]
OnlyTime = Annotated[
    bool,
    typer.Option(
        "--only-time",
        help="Only predict the time: do not train; run a script for a few dozen steps only.",
        rich_help_panel=CLUSTER,
    ),
]


@options.with_fields(
    *(name for name in options.OF_TRAINING if name not in options.GRIDDED), several=options.GRIDDED, panel=GRID
)
def simulate(
    file: FileOrScript = None,
    arguments: Arguments = None,
    settings: options.Set = None,
    module: Module = None,
    cluster: OfCluster = None,
    only_time: OnlyTime = False,
    output: options.Report = None,
    form: Annotated[Form, typer.Option("--format", help="How to print several settings.")] = Form.TABLE,
    runs: options.Runs = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train on a virtual cluster: get the weights of a real run and the predicted time.

    Predictions use the profile that `tenfold calibrate` measured; missing measurements are made first.

    Examples: [cyan]tenfold simulate lenet.toml --workers 64 --link 10gbe[/],
    [cyan]tenfold simulate lenet.toml --workers 8 --cluster edge.toml[/],
    [cyan]tenfold simulate lenet.toml --workers 4,8 --set folds=10 --link 10gbe[/],
    [cyan]tenfold simulate lenet.toml --workers 1,2,4,...,1024 --only-time -o speedup.html[/],
    [cyan]tenfold simulate train_ddp.py --workers 16 --link 10gbe -- --epochs 2[/],
    [cyan]tenfold simulate -m package.train --workers 16 -- --epochs 2[/]
    """
    given = {name: fields.pop(name) for name in options.GRIDDED}
    settings, several = with_several_values(settings)
    grid: dict[str, Any] = grid_of(given, several, settings)
    if module is not None or (file is not None and file.endswith(".py")):
        _simulate_script(
            [text for text in (module, file, *(arguments or ())) if text is not None],
            grid,
            {**fields, "cluster": cluster}
            | {short_name(name): value for name, value in map(options.parse_setting, settings)},
            runs,
            output,
            Form.JSON if as_json else form,
            module=module is not None,
            only_time=only_time,
            quiet=quiet,
        )
        return
    if arguments:
        raise ExperimentError(f"'{arguments[0]}' is an argument for a script, but {file} is not a script (.py)")
    experiment = options.experiment_from(
        Path(file) if file else None, settings, cluster=cluster, engine="virtual", **fields
    )
    form = Form.JSON if as_json else form
    if only_time:
        from tenfold.api.simulate import forecast

        with showing_progress(quiet or form is Form.JSON) as show:
            predicted = forecast(experiment, progress=show, **grid)
        print_result(predicted, form, output)
        return
    start_early()
    if any(len(values) != 1 for values in grid.values()):
        from tenfold.api.compare import compare

        with watching(quiet) as grid_watch:
            compared = compare(experiment, runs=runs, watch=grid_watch.watch, listen=grid_watch.listen, log=log, **grid)
        print_result(compared, form, output)
        return
    _one(experiment.replace(**{name: values[0] for name, values in grid.items()}), runs, log, quiet, as_json, output)


SCRIPT_FIELDS = ("workers", "link", "cluster", "threads", "seed", "name")
"""Fields that apply to a script."""


def _simulate_script(
    command: list[str],
    grid: dict[str, list[Any]],
    fields: dict[str, Any],
    runs: Path | None,
    output: Path | None,
    form: Form,
    *,
    module: bool,
    only_time: bool,
    quiet: bool,
) -> None:
    from tenfold.api.simulate import simulate_script
    from tenfold.reports.comparison import Comparison
    from tenfold.runs.store import one_invocation

    script, *arguments = command
    fields = {name: value for name, value in fields.items() if value is not None}
    if refused := [name for name in (*fields, *grid) if name not in SCRIPT_FIELDS]:
        raise ExperimentError(
            f"{refused[0]} is a field of experiments, but {Path(script).name} is a script: its own arguments come "
            f"after --, and of the fields only {', '.join(SCRIPT_FIELDS)} apply"
        )

    def say(_: int, line: str) -> None:
        if not quiet:
            typer.echo(line, err=form is not Form.TABLE)

    try:
        with one_invocation():
            done = [
                simulate_script(
                    script, *arguments, module=module, only_time=only_time, runs=runs, say=say, **fields, **chosen
                )
                for chosen in (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
            ]
    except KeyboardInterrupt:
        exit_interrupted("scripts cannot be resumed: run the same command again")
    if len(done) == 1:
        print_run(done[0], form is Form.JSON, output)
    else:
        print_result(Comparison(done), form, output)


def _one(
    experiment: "Experiment", runs: Path | None, log: list[str] | None, quiet: bool, as_json: bool, output: Path | None
) -> None:
    import tenfold
    from tenfold.reports.progress import run_display

    quiet = quiet or as_json
    with following(run_display(experiment, quiet=quiet), runs, quiet) as listen:
        run = tenfold.simulate(experiment, runs=runs, log=log, listen=listen)
    from tenfold.api.simulate import accuracy_warning, recorded_baseline

    print_run(run, as_json, output)
    if (baseline := recorded_baseline(run)) is not None and not as_json:
        typer.echo(baseline.line(run))
    if warning := accuracy_warning(experiment, run):
        typer.secho(f"warning: {warning}", err=True, fg="yellow")


def _check_file(path: Path | None) -> Path | None:
    if path is not None:
        check_output(path, "the chosen experiment", ".toml")
    return path


@options.with_executor
@options.with_fields("target", "model", "data", "seed")
def plan(
    file: options.File = None,
    settings: options.Set = None,
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
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the chosen experiment to this file, .toml.", callback=_check_file),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write an HTML report.", callback=options.check_report)
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the settings.")] = Form.TABLE,
    where: options.Where | None = None,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Find the workers, threads, batch size and averaging that reach a target soonest.

    Short training runs predict how long each setting takes; trial runs with several seeds show how few epochs are
    enough. Nothing is recorded, and the result is a prediction. With --on, the plan also shows the overhead of that
    executor.

    Examples: [cyan]tenfold plan lenet.toml --target 0.99 -o best.toml[/],
    [cyan]tenfold plan lenet.toml --target 0.99 --cluster lab.toml --max-workers 64[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    start_early()
    from tenfold.api.plan import plan as find

    form = Form.JSON if as_json else form
    with showing_progress(quiet or form is not Form.TABLE) as show, fetching(quiet or form is not Form.TABLE):
        on = where.open() if where else "local"
        chosen = find(
            experiment, cluster=cluster, max_workers=max_workers, budget=budget, on=on, runs=runs, progress=show
        )
    print_result(chosen, form, report)
    if output is not None:
        chosen.best.save(output)
        how = f"`tenfold train {output}` runs it"
        if cluster is not None:
            how = f"`tenfold simulate {output} --cluster {cluster}` runs it there, `tenfold launch` on real hosts"
        typer.echo(f"the experiment is in {output}; {how}", err=form is not Form.TABLE)


@options.with_fields(*options.OF_TRAINING)
def twin(
    file: options.File = None,
    settings: options.Set = None,
    output: options.Report = None,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train with real processes and on a virtual cluster, and compare weights and times.

    Examples: [cyan]tenfold twin lenet.toml --workers 2[/],
    [cyan]tenfold twin best.toml --target 0.99[/],
    [cyan]tenfold twin --data digits --model mlp --workers 2 --strategy ring -o twin.html[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    start_early()
    from tenfold.api.simulate import twin as run_both
    from tenfold.reports.progress import RunProgress

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


@options.with_fields(*(name for name in options.OF_TRAINING if name != "workers"), "link")
def scaling(
    file: options.File = None,
    settings: options.Set = None,
    up_to: Annotated[int, typer.Option("--up-to", help="Predict up to this many workers.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each number of workers, with different seeds.")] = 1,
    output: options.Report = None,
    form: Annotated[Form, typer.Option("--format", help="How to print the numbers.")] = Form.TABLE,
    runs: options.Runs = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Measure strong and weak scaling up to this machine's cores, and predict both beyond.

    The report has the table, plots and sentences that computing centers ask for in a proposal. Recorded runs are not
    repeated.

    Examples: [cyan]tenfold scaling lenet.toml -o scaling.html[/],
    [cyan]tenfold scaling lenet.toml --up-to 256 --link infiniband --repeats 3[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    start_early()
    from tenfold.api.simulate import scaling as measure

    form = Form.JSON if as_json else form
    with watching(quiet or form is not Form.TABLE) as shown:
        watch: dict[str, Any] = {"watch": shown.watch, "listen": shown.listen}
        result = measure(experiment, up_to=up_to, repeats=repeats, runs=runs, **watch)
    print_result(result, form, output)


def whatif(
    run: options.Reference = "last",
    link: Annotated[
        str | None, typer.Option("--link", help="Links between nodes: 1gbe,10gbe. Default: three common ones.")
    ] = None,
    runs: options.Runs = None,
    as_json: options.Json = False,
) -> None:
    """Predict how long a run would have taken with one thing changed: free communication, another link, more workers.

    A simulated clock replays the recorded steps and rounds; each line says what it is based on.

    Examples: [cyan]tenfold whatif[/], [cyan]tenfold whatif 12 --link 1gbe,infiniband[/]
    """
    import tenfold

    given = {} if link is None else {"links": [name.strip() for name in link.split(",")]}
    replayed = tenfold.whatif(run, runs=runs, **given)
    if as_json:
        print_json(replayed.record())
        return
    from tenfold.reports.formatting import duration
    from tenfold.reports.tables import TextTable

    rows = [
        [change.what, change.basis, duration(change.seconds), f"{change.seconds / replayed.seconds:.2f}x"]
        for change in replayed.changes
    ]
    title = f"Run {replayed.run.id}: {duration(replayed.seconds)} measured"
    table = TextTable(["with", "based on", "would have taken", "of measured"], rows, title=title)
    print_rich(table.to_rich(words=2))
    error = replayed.replayed / replayed.seconds - 1
    typer.echo(
        f"predicted by replaying the first {replayed.steps} steps of each worker; unchanged, that gives "
        f"{duration(replayed.replayed)} ({error:+.0%}), and all times above are scaled by the difference"
    )


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to save the profile. Default: $TENFOLD_PROFILE, else the user's data folder.",
        show_default=False,
    ),
]


File = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads this form for an argument that may be left out
    typer.Argument(help="The experiment whose steps to measure. Default: the built-in models.", show_default=False),
]


def calibrate(
    file: File = None,
    settings: options.Set = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure within seconds, less accurately.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Show how close earlier predictions came; measure nothing.")
    ] = False,
    output: Output = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure the speed of this machine, in about a minute, and save it as a profile for predictions.

    This times the steps of an experiment, or of the built-in models. Run nothing else meanwhile.

    Examples: [cyan]tenfold calibrate[/], [cyan]tenfold calibrate lenet.toml -o machine.toml[/],
    [cyan]tenfold calibrate --check[/]
    """
    if check:
        _check(as_json)
        return
    from tenfold.api.plan import calibrate as measure
    from tenfold.machine.metadata import profile_path
    from tenfold.prediction.profile import Profile

    experiment = options.experiment_from(file, settings) if file or settings else None
    place = output or profile_path()
    check_output(place, "the profile")
    earlier = None
    with suppress(MachineError):  # a profile that cannot be read is replaced
        earlier = Profile.load(place)
    with showing_progress(quiet or as_json) as show:
        profile = measure(experiment, earlier, quick=quick, progress=show)
    profile.save(place)
    if as_json:
        print_json(profile.model_dump(exclude={"steps": {"__all__": {"trace"}}}))
        return
    from tenfold.machine.metadata import MOST_LOAD_PER_CORE
    from tenfold.reports.tables import TextTable

    steps = [
        [
            *(step.work, str(step.batch_size), f"{step.workers} x {step.threads}"),
            f"{1e3 * step.mean:.3g} ± {step.standard_error:.1%}",
            f"{step.between_steps:.1%}, {step.between_workers:.1%}",
            f"{1e3 * step.round:.3g}" if step.round is not None else "",
            f"{step.samples:,}",
            f"{step.at[:16].replace('T', ' ')}{', busy' if step.load > MOST_LOAD_PER_CORE else ''}",
            f"{step.clock_mhz / 1e3:.1f}" if step.clock_mhz else "",
        ]
        for step in profile.steps
    ]
    rounds = [
        [
            *(entry.transport, str(entry.workers), f"{entry.fan} ({entry.kind})"),
            *(f"{1e6 * entry.latency:.0f} µs", f"{entry.bandwidth / 1e9:.3g} GB/s", f"{entry.residual:.0%}"),
            ", ".join(f"{nbytes / 1e6:.2g}: {1e3 * seconds:.3g}" for nbytes, seconds in entry.seconds.items()),
        ]
        for entry in profile.averaging
    ]
    columns = ["work", "batch", "workers x threads", "ms a step", "spread: steps, workers", "ms a round", "steps"]
    print_rich(TextTable([*columns, "measured, UTC", "GHz"], steps).to_rich())
    columns = ["transport", "workers", "each reads", "latency", "bandwidth", "line's error", "ms, by MB of weights"]
    print_rich(TextTable(columns, rounds).to_rich())
    costs = profile.costs
    starts = ", ".join(f"{seconds:.2g} s with {workers}" for workers, seconds in costs.start.items())
    typer.echo(f"start-up: {starts} worker(s); adding: {1e9 * costs.adding:.2g} s per GB")
    typer.echo(f"saved to {place}")


SHOWN_SCORES = 12
"""The latest predictions that `calibrate --check` lists."""


def _check(as_json: bool) -> None:
    from tenfold.prediction.ledger import Ledger
    from tenfold.reports.forecast import signed_percent
    from tenfold.reports.formatting import duration, interval
    from tenfold.reports.summary import ledger_note
    from tenfold.reports.tables import TextTable

    ledger = Ledger.load()
    if as_json:
        print_json(ledger.record())
        return
    if not ledger.scores:
        typer.echo(
            "no prediction for this machine has been tested yet; `tenfold twin FILE` predicts a run and measures it"
        )
        return
    rows = [
        [
            score.setting,
            duration(score.measured),
            f"{duration(score.predicted)} {interval(score.low, score.high, score.predicted)}",
            signed_percent(score.error),
        ]
        for score in ledger.scores[-SHOWN_SCORES:]
    ]
    columns = ["workers x threads, strategy, round every", "measured", "predicted", "error"]
    print_rich(TextTable(columns, rows, title="The latest predictions for this machine").to_rich())
    typer.echo(ledger_note(ledger))
