"""`tenfold evaluate`: how good a run's model is on other data, or on another part of its own."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.completion import complete_from
from tenfold.cli.output import print_json, print_rich
from tenfold.common.catalog import SOURCES
from tenfold.common.metric_table import METRICS
from tenfold.common.part_names import PARTS


def evaluate(
    run: options.Reference = "last",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help=f"Other data: {', '.join(SOURCES)}, a file, or package.module:callable. Default: the run's own.",
            show_default=False,
            autocompletion=complete_from(SOURCES),
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part",
            help="train, validation or test. Default: test; for other data without parts, all samples.",
            show_default=False,
            autocompletion=complete_from(PARTS),
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            help=f"{', '.join(METRICS)}, a scikit-learn scorer, or package.module:callable; may be repeated. "
            "Default: those of the experiment.",
            show_default=False,
            autocompletion=complete_from(METRICS),
        ),
    ] = None,
    runs: options.Runs = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Measure the model of a run on other data, or on another part of its own data.

    Examples: [cyan]tenfold evaluate last --part train[/], [cyan]tenfold evaluate 12 --data mydata:holdout[/],
    [cyan]tenfold evaluate last --metric accuracy --metric f1_macro[/]
    """
    import tenfold
    from tenfold.api.evaluate import evaluate as measure
    from tenfold.report.tables.run_tables import evaluation_table

    found = tenfold.open_run(run, runs=runs, trust=trust)
    measured = measure(found, data, part=part, metrics=metrics)
    if as_json:
        measurements = {"part": measured.part, "samples": measured.samples, "metrics": measured.metrics}
        print_json({"run": found.id, "data": data or found.facts["data"]["name"], **measurements})
    else:
        print_rich(evaluation_table(found, data, measured.part, measured.samples, measured.metrics))
