"""The outputs of a run's model for its test and validation samples, stored with the run as predictions.npz.

The file is written once, at the end of a run, beside model.pt. It is an uncompressed NumPy archive
(`numpy.load(path, allow_pickle=False)`) with these arrays for the parts "test" and "validation", if they exist:

| array | shape | content |
|---|---|---|
| `test_samples` | [n] int64 | the index of each sample in the original data |
| `test_outputs` | [n, ...] float32 | the network's outputs |
| `test_targets` | [n, ...] | the targets |
| `test_kind` | text | the kind of outputs: "classes" (a logit for each class), "logit" or "probability", "numbers" |
| `test_worst` | [k] int64 | for images: the positions of the most confident mistakes, the worst first |
| `test_pictures` | [k, height, width, 1 or 3] uint8 | images of these samples |

A fold of a cross-validation stores its validation part as well; the cross-validation itself stores nothing, and reads
the validation parts of its folds. A part whose outputs are larger than `LIMIT` bytes is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.common.files import read_npz, replacing
from tenfold.errors import StoreError

FILE = "predictions.npz"
LIMIT = 64 * 2**20
"""Outputs of a part are not stored if they have more bytes than this."""
COLUMNS = ("samples", "outputs", "targets", "kind")
EXTRA = ("worst", "pictures")


@dataclass(frozen=True, eq=False)
class Predictions:
    """The samples of one part, with the network's outputs and the targets."""

    part: str
    """test or validation."""
    kind: str
    """The kind of the outputs: classes, logit, probability or numbers."""
    samples: NDArray[np.int64]
    """The index of each sample in the original data; pooled parts are numbered as one, train first."""
    outputs: NDArray[Any]
    """The network's outputs, one row per sample."""
    targets: NDArray[Any]
    """The targets, one row per sample."""
    worst: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The positions of the most confident mistakes, worst first; empty if samples are not images."""
    pictures: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0, 0, 1), np.uint8))
    """These samples as pictures: [k, height, width, 1 or 3]."""

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        right = ""
        if self.kind != "numbers" and len(self):
            right = f", {self.right.mean():.2%} right"
        return f"<Predictions on {len(self)} samples of the {self.part} part: {self.kind}{right}>"

    @property
    def predictions(self) -> NDArray[Any]:
        """The class of each sample; for labels, 1 if the probability is above one half; for numbers, the outputs."""
        if self.kind == "classes":
            return np.asarray(self.outputs.argmax(1), dtype=np.int64)
        border = {"logit": 0.0, "probability": 0.5}.get(self.kind)
        return self.outputs if border is None else (self.outputs > border).astype(np.int64)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the prediction is correct, for each sample or each label of each sample; an error for numbers."""
        if self.kind == "numbers":
            raise StoreError("the model predicts numbers, so predictions are not right or wrong; this needs classes")
        wanted = self.targets if self.kind == "classes" else self.targets > 0.5
        return np.asarray(self.predictions.reshape(wanted.shape) == wanted)

    @property
    def confidences(self) -> NDArray[Any]:
        """The model's probability of each prediction; an error without classes."""
        if self.kind != "classes":
            raise StoreError("confidences need one output per class")
        shifted = np.exp(self.outputs - self.outputs.max(1, keepdims=True))
        return np.asarray(shifted.max(1) / shifted.sum(1))

    def confusion(self) -> NDArray[np.int64]:
        """Return the confusion matrix, with true classes in rows; labels below 0 are ignored."""
        if self.kind == "numbers" or self.targets.size != len(self):
            raise StoreError("a confusion matrix needs one class for each sample")
        count = self.outputs.shape[1] if self.kind == "classes" else 2
        wanted = self.targets if self.kind == "classes" else self.targets > 0.5
        true, said = (values.reshape(-1).astype(np.int64) for values in (wanted, self.predictions))
        true, said = true[true >= 0], said[true >= 0]
        return np.bincount(true * count + said, minlength=count * count).reshape(count, count)


def save(parts: Mapping[str, Predictions], path: Path) -> None:
    """Store the predictions of the parts that are within the limit; if none is, write no file."""
    small = {name: item for name, item in parts.items() if item.outputs.nbytes <= LIMIT}
    arrays = {
        f"{name}_{column}": np.asarray(getattr(item, column))
        for name, item in small.items()
        for column in (*COLUMNS, *(EXTRA if len(item.worst) else ()))
    }
    if not arrays:
        return
    try:
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


def load(path: Path, part: str) -> Predictions | None:
    """Return the stored predictions on a part; None if there are none."""
    try:
        stored = read_npz(path, [f"{part}_{name}" for name in (*COLUMNS, *EXTRA)])
        if f"{part}_outputs" not in stored:
            return None
        arrays = {name: stored[f"{part}_{name}"] for name in COLUMNS}
        arrays |= {name: stored[f"{part}_{name}"] for name in EXTRA if f"{part}_{name}" in stored}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})") from None
    return Predictions(part, str(arrays.pop("kind")), **arrays)


def join(several: Sequence[Predictions]) -> Predictions:
    """Return the predictions of several models on different samples as one, in the order of the samples."""
    order = np.argsort(np.concatenate([item.samples for item in several]), kind="stable")
    return Predictions(
        several[0].part,
        several[0].kind,
        samples=np.concatenate([item.samples for item in several])[order],
        outputs=np.concatenate([item.outputs for item in several])[order],
        targets=np.concatenate([item.targets for item in several])[order],
    )
