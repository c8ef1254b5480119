"""Commands that use a trained model: `predict`, `evaluate`, `export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenfold.cli import options
from tenfold.cli.options import complete_from
from tenfold.cli.output import print_json, print_rich, write_file
from tenfold.common import PARTS
from tenfold.common.metric_traits import METRICS
from tenfold.errors import DataError, ExperimentError
from tenfold.registry import SOURCES, suggest

if TYPE_CHECKING:
    from tenfold.runs import Run


def predict(
    run: options.Reference,
    file: Annotated[
        Path,
        typer.Argument(
            help="Samples: an .npy file, an .npz file with the array x, a table (.csv, .tsv, .parquet), or an image or "
            "a folder of images."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write, .csv or .npy. Default: print CSV.", show_default=False),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of each class instead of the class.")
    ] = False,
    runs: options.Runs = None,
    trust: options.Trust = False,
) -> None:
    """Predict classes or numbers for the samples in a file, with a run's model.

    Images may lack the channel dimension, or be flat rows. For a built-in data set, whole numbers are raw pixels; for
    your own data, uint8 is divided by 255, as in training.

    Examples: [cyan]tenfold predict last images.npy -o labels.csv[/], [cyan]tenfold predict 12 table.csv[/],
    [cyan]tenfold predict last images.npz --probabilities -o shares.npy[/], [cyan]tenfold predict last photos/[/]
    """
    import tenfold
    from tenfold.api.predict import with_model
    from tenfold.data.files import read_inputs
    from tenfold.reports.exports import predictions_to_csv

    if output is not None and output.suffix.lower() not in (".csv", ".npy"):
        raise DataError(f"predictions are written to .csv and .npy files, not to {output.name}")
    opened = with_model(tenfold.open_run(run, runs=runs, trust=trust))
    trained_on = opened.metadata["data"]
    x, names = read_inputs(file, trained_on, opened.experiment.data.options)
    predicted = opened.predict_proba(x) if probabilities else opened.predict(x)
    if output is not None and output.suffix.lower() == ".npy":
        import io

        import numpy as np

        array = io.BytesIO()
        np.save(array, predicted)
        write_file(output, array.getvalue())
    else:
        classes = trained_on.get("class_names", ())
        text = predictions_to_csv(predicted, classes, samples=names, probabilities=probabilities)
        if output is None:
            typer.echo(text, nl=False)
            return
        write_file(output, text)
    typer.echo(f"{len(predicted)} predictions are in {output}")


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
    """Measure a run's model on other data, or on another part of its own data.

    Examples: [cyan]tenfold evaluate last --part train[/], [cyan]tenfold evaluate 12 --data mydata:holdout[/],
    [cyan]tenfold evaluate last --metric accuracy --metric f1_macro[/]
    """
    import tenfold
    from tenfold.api.predict import evaluate as measure
    from tenfold.reports.run_tables import evaluation_table

    opened = tenfold.open_run(run, runs=runs, trust=trust)
    measured = measure(opened, data, part=part, metrics=metrics)
    if as_json:
        measurements = {"part": measured.part, "samples": measured.samples, "metrics": measured.metrics}
        print_json({"run": opened.id, "data": data or opened.metadata["data"]["name"], **measurements})
    else:
        print_rich(evaluation_table(opened, data, measured.part, measured.samples, measured.metrics))


NUMBERS = ("csv", "json", "parquet")
TRACE = "trace"
MODELS = {"torch": (".pt2", ".pt"), "onnx": (".onnx",)}
"""Formats of models, with the endings of their files; the first is the default."""
FORMATS = (*NUMBERS, TRACE, *MODELS)
TABLES = ("metrics", "epochs", "spans", "result")


def export(
    references: options.References = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="Numbers: csv, json, parquet. A timeline of the workers, for Perfetto: trace. The model: torch (a "
            "program, or with -o model.pt the weights), onnx.",
            autocompletion=complete_from(FORMATS),
        ),
    ] = "csv",
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            "-t",
            help="metrics (every measurement, by step), epochs (one row each), spans (how each worker spent its time) "
            "or result (one row per run). Default: metrics; for json, everything but spans.",
            show_default=False,
            autocompletion=complete_from(TABLES),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write. Default: print csv and json; else run-N.*.", show_default=False
        ),
    ] = None,
    runs: options.Runs = None,
    trust: options.Trust = False,
) -> None:
    """Export runs' numbers, or a run's trace or model, for other programs.

    Examples: [cyan]tenfold export last[/], [cyan]tenfold export 3 4 5 --table epochs -o epochs.csv[/],
    [cyan]tenfold export last --format parquet[/], [cyan]tenfold export last --format trace[/],
    [cyan]tenfold export last --format onnx -o model.onnx[/], [cyan]tenfold export last --format torch -o model.pt[/]
    """
    import tenfold

    if form not in FORMATS:
        raise ExperimentError(f"unknown format '{form}'; {suggest(form, FORMATS)}")
    if table is not None and table not in TABLES:
        raise ExperimentError(f"unknown table '{table}'; {suggest(table, TABLES)}")
    opened = [tenfold.open_run(reference, runs=runs, trust=trust) for reference in references or ["last"]]
    if form not in NUMBERS and (len(opened) > 1 or table):
        what = "trace" if form == TRACE else "model"
        raise ExperimentError(f"--format {form} exports the {what} of one run; omit the others and --table")
    if form in MODELS:
        _export_model(opened[0], form, output)
    elif form == TRACE:
        path = output or Path(f"run-{opened[0].id}-trace.json")
        write_file(path, json.dumps(opened[0].trace()))
        typer.echo(f"wrote {path}")
    elif output is None and form != "parquet":
        typer.echo(_content(opened, form, table), nl=False)
    else:
        path = output or Path(f"run-{'-'.join(str(run.id) for run in opened[:4])}.{form}")
        write_file(path, _content(opened, form, table))
        typer.echo(f"wrote {path}")


def _content(runs: "list[Run]", form: str, table: str | None) -> str | bytes:
    from tenfold.reports.exports import METRICS, to_csv, to_json, to_parquet

    if form == "json":
        return to_json(runs, table) + "\n"
    return to_csv(runs, table or METRICS) if form == "csv" else to_parquet(runs, table or METRICS)


def _export_model(run: "Run", form: str, output: Path | None) -> None:
    from tenfold.api.predict import EXPORTS

    endings = MODELS[form]
    path = output or Path(f"run-{run.id}{endings[0]}")
    if path.suffix.lower() not in endings:
        raise ExperimentError(f"--format {form} writes files that end with {' or '.join(endings)}, not {path.name}")
    lines = EXPORTS[path.suffix.lower()](run, path)
    typer.echo(f"wrote {path}; use it without Tenfold:\n\n{lines}", nl=False)
