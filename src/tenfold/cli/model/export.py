"""`tenfold export`: a run's numbers, its trace or its model, for other programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenfold.cli import options
from tenfold.cli.completion import complete_from
from tenfold.cli.output import write_file
from tenfold.common.registry import suggest
from tenfold.errors import ExperimentError

if TYPE_CHECKING:
    from tenfold.runs import Run

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
            help="Numbers: csv, json, parquet. What each worker did when, for Perfetto: trace. The model: torch (a "
            "program, or with -o model.pt its weights), onnx.",
            autocompletion=complete_from(FORMATS),
        ),
    ] = "csv",
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            "-t",
            help="metrics (every measurement, by step), epochs (one row each), spans (what each worker spent time on) "
            "or result (one row a run). Default: metrics; for json, everything but spans.",
            show_default=False,
            autocompletion=complete_from(TABLES),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write. Default: print csv and json; run-N.* else.", show_default=False
        ),
    ] = None,
    runs: options.Runs = None,
    trust: options.Trust = False,
) -> None:
    """Export the numbers of runs, or the trace or the model of a run, for other programs.

    Examples: [cyan]tenfold export last[/], [cyan]tenfold export 3 4 5 --table epochs -o epochs.csv[/],
    [cyan]tenfold export last --format parquet[/], [cyan]tenfold export last --format trace[/],
    [cyan]tenfold export last --format onnx -o model.onnx[/], [cyan]tenfold export last --format torch -o model.pt[/]
    """
    import tenfold

    if form not in FORMATS:
        raise ExperimentError(f"unknown format '{form}'; {suggest(form, FORMATS)}")
    if table is not None and table not in TABLES:
        raise ExperimentError(f"unknown table '{table}'; {suggest(table, TABLES)}")
    found = [tenfold.open_run(reference, runs=runs, trust=trust) for reference in references or ["last"]]
    if form not in NUMBERS and (len(found) > 1 or table):
        what = "trace" if form == TRACE else "model"
        raise ExperimentError(f"--format {form} exports the {what} of one run; leave out the others and --table")
    if form in MODELS:
        _export_model(found[0], form, output)
    elif form == TRACE:
        path = output or Path(f"run-{found[0].id}-trace.json")
        write_file(path, json.dumps(found[0].trace()))
        typer.echo(f"wrote {path}")
    elif output is None and form != "parquet":
        typer.echo(_content(found, form, table), nl=False)
    else:
        path = output or Path(f"run-{'-'.join(str(run.id) for run in found[:4])}.{form}")
        write_file(path, _content(found, form, table))
        typer.echo(f"wrote {path}")


def _content(runs: "list[Run]", form: str, table: str | None) -> str | bytes:
    from tenfold.report.exports.export import METRICS, to_csv, to_json, to_parquet

    if form == "json":
        return to_json(runs, table) + "\n"
    return to_csv(runs, table or METRICS) if form == "csv" else to_parquet(runs, table or METRICS)


def _export_model(run: "Run", form: str, output: Path | None) -> None:
    from tenfold.api.export_model import EXPORTS

    endings = MODELS[form]
    path = output or Path(f"run-{run.id}{endings[0]}")
    if path.suffix.lower() not in endings:
        raise ExperimentError(f"--format {form} writes files that end with {' or '.join(endings)}, not {path.name}")
    lines = EXPORTS[path.suffix.lower()](run, path)
    typer.echo(f"wrote {path}; use it without Tenfold:\n\n{lines}", nl=False)
