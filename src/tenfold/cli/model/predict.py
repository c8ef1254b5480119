"""`tenfold predict`: what a run's model predicts for the samples in a file."""

from pathlib import Path
from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import write_file
from tenfold.errors import DataError


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
    """Predict classes or numbers for the samples in a file, with the model of a run.

    Images may come without the axis of a single channel, or as flat rows. Whole numbers are pixels as the files of a
    built-in data set hold them; for your own data, uint8 is divided by 255 as in training.

    Examples: [cyan]tenfold predict last images.npy -o labels.csv[/], [cyan]tenfold predict 12 table.csv[/],
    [cyan]tenfold predict last images.npz --probabilities -o shares.npy[/], [cyan]tenfold predict last photos/[/]
    """
    import tenfold
    from tenfold.data.files.input_files import read_inputs
    from tenfold.report.exports.prediction_rows import predictions_to_csv

    if output is not None and output.suffix.lower() not in (".csv", ".npy"):
        raise DataError(f"predictions are written to .csv and .npy files, not to {output.name}")
    found = tenfold.open_run(run, runs=runs, trust=trust)
    trained_on = found.facts["data"]
    x, names = read_inputs(file, trained_on, found.experiment.data.options)
    predicted = found.predict_proba(x) if probabilities else found.predict(x)
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
