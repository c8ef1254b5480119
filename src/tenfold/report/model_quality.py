"""The quality of a model, from a run's predictions: confusion matrix, calibration and worst mistakes."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import StoreError
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL
from tenfold.runs.stored_predictions import Predictions

LARGEST_CONFUSION_MATRIX = 40
"""With more classes than this, a matrix of all pairs cannot be read."""
BINS = 10
MOST_POINTS = 1500


def model_quality(run: Run) -> dict[str, Any] | None:
    """Return what a page shows of a run's model; None where no predictions are stored."""
    if run.status == "running":
        return None
    for part in ("validation",) if run.kind == CROSSVAL else ("test", "validation"):
        try:
            found = run.predictions_on(part)
        except StoreError:
            continue
        return describe_predictions(found)
    return None


def describe_predictions(found: Predictions) -> dict[str, Any] | None:
    """Return confusion matrix, accuracy by class, calibration and mistakes; for a regression, both values."""
    common = {"part": found.part, "samples": len(found), "kind": found.kind}
    if found.kind == "classes" and found.targets.ndim == 1 and len(found):
        return common | _classes(found)
    if found.kind == "numbers" and found.outputs.size == found.targets.size and len(found):
        return common | _numbers(found)
    return None


def _classes(found: Predictions) -> dict[str, Any]:
    matrix = found.confusion()
    right, of_class, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return {
        "classes": len(matrix),
        "confusion": matrix.tolist() if len(matrix) <= LARGEST_CONFUSION_MATRIX else None,
        "byClass": [
            {
                "class": at,
                "samples": int(of_class[at]),
                "recall": _ratio(right[at], of_class[at]),
                "precision": _ratio(right[at], said[at]),
            }
            for at in range(len(matrix))
        ],
        **_calibration(found),
        "mistakes": _mistakes(found),
    }


def _calibration(found: Predictions) -> dict[str, Any]:
    """Return mean confidence and accuracy in bins of confidence, and the expected calibration error.

    ECE = sum over bins of n_b / n |accuracy_b - confidence_b| (Guo, Pleiss, Sun & Weinberger 2017).
    """
    confidence, right = found.confidences.astype(np.float64), found.right.reshape(-1)
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins, error = [], 0.0
    for one in np.unique(place):
        chosen = place == one
        sure, share = float(confidence[chosen].mean()), float(right[chosen].mean())
        bins.append({"confidence": sure, "accuracy": share, "samples": int(chosen.sum())})
        error += chosen.mean() * abs(sure - share)
    return {"calibration": bins, "calibrationError": float(error)}


def _mistakes(found: Predictions) -> list[dict[str, Any]]:
    confidence, said = found.confidences, found.predictions
    return [
        {
            "sample": int(found.samples[place]),
            "true": int(found.targets[place]),
            "predicted": int(said[place]),
            "confidence": float(confidence[place]),
            "picture": png_address(picture),
        }
        for place, picture in zip(found.worst, found.pictures, strict=True)
    ]


def _numbers(found: Predictions) -> dict[str, Any]:
    """Return predicted and true values, evenly chosen among very many, and the mean and spread of the residuals."""
    true, said = (values.reshape(-1).astype(np.float64) for values in (found.targets, found.outputs))
    residuals = said - true
    chosen = np.linspace(0, len(true) - 1, min(len(true), MOST_POINTS)).astype(int)
    counts, edges = np.histogram(residuals[np.isfinite(residuals)], bins=40)
    return {
        "true": true[chosen].tolist(),
        "predicted": said[chosen].tolist(),
        "residuals": {"counts": counts.tolist(), "edges": edges.tolist()},
        "bias": float(residuals.mean()),
        "deviation": float(residuals.std()),
    }


def png_address(picture: NDArray[np.uint8]) -> str:
    """Return a picture [height, width, 1 or 3] as an address that holds a PNG file."""
    height, width, channels = picture.shape
    rows = b"".join(b"\0" + picture[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
