"""What a model predicted for samples, as rows of a table."""

from typing import Any

from tenfold.report.exports.csv_table import write_csv


def predictions_to_csv(predicted: Any, *, probabilities: bool = False) -> str:
    """Return an array of predictions as CSV, one row a sample: its number, and its class, numbers or probabilities."""
    width = predicted[0].size if len(predicted) else 0
    flat = predicted.reshape(len(predicted), -1)
    word = "probability" if probabilities else "class" if predicted.dtype.kind in "iu" else "prediction"
    names = [word] if width == 1 else [f"{word}_{number}" for number in range(width)]
    rows = ({"sample": number} | dict(zip(names, row, strict=True)) for number, row in enumerate(flat.tolist()))
    return write_csv(("sample", *names), rows)
