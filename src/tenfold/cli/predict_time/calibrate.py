"""`tenfold calibrate`: measure this machine, so that times can be predicted."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich, showing_progress
from tenfold.common.files import check_output
from tenfold.errors import MachineError

if TYPE_CHECKING:
    from tenfold.prediction.profile import Profile

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
    quick: Annotated[bool, typer.Option("--quick", help="Measure within seconds, but less exactly.")] = False,
    output: Output = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure the speed of this machine, in about a minute on a few cores, and save it as a profile for predictions.

    The steps of an experiment, or of the built-in models, are timed. Run nothing else meanwhile.

    Examples: [cyan]tenfold calibrate[/], [cyan]tenfold calibrate lenet.toml -o machine.toml[/]
    """
    from tenfold.api.calibrate import calibrate as measure
    from tenfold.prediction.profile import Profile, default_path

    experiment = options.experiment_from(file, settings) if file or settings else None
    place = output or default_path()
    check_output(place, "the profile")
    known = None
    with suppress(MachineError):  # a profile that cannot be read is replaced
        known = Profile.load(place)
    with showing_progress(quiet or as_json) as show:
        profile = measure(experiment, known, quick=quick, progress=show)
    profile.save_changes(known, place)
    if as_json:
        print_json(profile.model_dump(exclude={"steps": {"__all__": {"trace"}}}))
        return
    print_rich(_steps(profile), _rounds(profile))
    costs = profile.costs
    starts = ", ".join(f"{seconds:.2g} s with {workers}" for workers, seconds in costs.start.items())
    typer.echo(f"start-up: {starts} worker(s); adding: {1e9 * costs.adding:.2g} s per GB")
    typer.echo(f"saved to {place}")


def _steps(profile: "Profile") -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("work", "batch", "workers x threads", "ms a step", "spread: steps, workers", "ms a round", "measured")
    for step in profile.steps:
        table.add_row(
            escape(step.work),
            str(step.batch_size),
            f"{step.workers} x {step.threads}",
            f"{1e3 * step.mean:.3g} ± {step.standard_error:.1%}",
            f"{step.between_steps:.1%}, {step.between_workers:.1%}",
            f"{1e3 * step.round:.3g}" if step.round is not None else "",
            f"{step.samples:,}",
        )
    return table


def _rounds(profile: "Profile") -> Any:
    from rich.table import Table

    table = Table("transport", "workers", "each reads", "latency", "bandwidth", "line's error", "ms, by MB of weights")
    for entry in profile.averaging:
        measured = ", ".join(f"{nbytes / 1e6:.2g}: {1e3 * seconds:.3g}" for nbytes, seconds in entry.seconds.items())
        table.add_row(
            entry.transport,
            str(entry.workers),
            f"{entry.fan} ({entry.kind})",
            f"{1e6 * entry.latency:.0f} µs",
            f"{entry.bandwidth / 1e9:.3g} GB/s",
            f"{entry.residual:.0%}",
            measured,
        )
    return table
