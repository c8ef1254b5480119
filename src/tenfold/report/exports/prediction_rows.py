"""What a model predicted for samples, as rows of a table."""

from collections.abc import Sequence
from typing import Any

from tenfold.report.exports.csv_table import write_csv


def predictions_to_csv(
    predicted: Any, classes: Sequence[str] = (), *, samples: Sequence[str] | None = None, probabilities: bool = False
) -> str:
    """Return an array of predictions as CSV, one row a sample: its number, and its class, numbers or probabilities.

    Samples and classes go by their names where these are known.
    """
    width = predicted[0].size if len(predicted) else 0
    flat = predicted.reshape(len(predicted), -1)
    word = "probability" if probabilities else "class" if predicted.dtype.kind in "iu" else "prediction"
    ends = classes if probabilities and len(classes) == width else range(width)
    names = [word] if width == 1 else [f"{word}_{end}" for end in ends]
    named = bool(classes) and word == "class"
    rows = [
        {"sample": sample} | dict(zip(names, [classes[one] for one in row] if named else row, strict=True))
        for sample, row in zip(samples or range(len(flat)), flat.tolist(), strict=True)
    ]
    return write_csv(rows, ("sample", *names))
