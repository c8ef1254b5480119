"""The tasks of the demo: LeNet-5 on MNIST or digits, and three networks on generated data."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLASSES = 10
TEST_SAMPLES = 2_000
Parts = dict[str, tuple[Tensor, Tensor]]


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalization, and a skip connection."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.way(x) + self.skip(x))


def resnet() -> nn.Module:
    """Return a residual network of 1.1 million parameters for images of 32 x 32."""
    widths = [(32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 160, 2)]
    first = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, CLASSES)]
    return nn.Sequential(*first, *(ResidualBlock(*width) for width in widths), *last)


class Lstm(nn.Module):
    """One layer of 256 units over sequences of 20 vectors; the last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 256, batch_first=True)
        self.out = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def tabular() -> nn.Module:
    layers: list[nn.Module] = []
    for width in (64, 256, 256):
        layers += [nn.Linear(width, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, CLASSES))


def make_clusters(shape: tuple[int, ...], samples: int, scale: float, clusters: int = 1) -> Parts:
    """Return noise around `clusters` random centers for each class, the same every time."""
    generator = torch.Generator().manual_seed(0)
    centers = scale * torch.randn(clusters * CLASSES, *shape, generator=generator)
    chosen = torch.randint(len(centers), (samples + TEST_SAMPLES,), generator=generator)
    x, y = centers[chosen] + torch.randn(len(chosen), *shape, generator=generator), chosen % CLASSES
    return {"train": (x[:samples], y[:samples]), "test": (x[samples:], y[samples:])}


def sequences() -> Parts:
    return make_clusters((20, 32), 16_000, 0.5)


def rows() -> Parts:
    """Return rows of 64 numbers; the classes cannot be separated by planes."""
    return make_clusters((64,), 120_000, 0.7, clusters=8)


def images() -> Parts:
    return make_clusters((3, 32, 32), 3_000, 0.3)


@dataclass(frozen=True, kw_only=True)
class RaceTask:
    """The task of the contestants, and the epochs that each needs to reach the target."""

    title: str
    model: str
    data: str
    target: float | None
    """The test accuracy that all should reach; None for the end of training."""
    lr: float
    """The learning rate of the tutorial's loop: SGD with momentum 0.9 and batches of 64."""
    epochs: tuple[int, int, int, int]
    """Epochs for the tutorial's loop, one worker, up to 4 workers, and more workers."""
    is_tiny: bool = False
    """Whether steps are too short for several threads, and epochs for several evaluations."""


MADE = f"{__name__}:"
TASKS = {
    "lstm": RaceTask(
        title="an LSTM on generated sequences",
        model=f"{MADE}Lstm",
        data=f"{MADE}sequences",
        target=0.97,
        lr=0.3,
        epochs=(1, 1, 1, 2),
    ),
    "tabular": RaceTask(
        title="an MLP on generated rows",
        model=f"{MADE}tabular",
        data=f"{MADE}rows",
        target=0.96,
        lr=0.1,
        epochs=(1, 1, 1, 2),
    ),
    "resnet": RaceTask(
        title="a ResNet on generated images",
        model=f"{MADE}resnet",
        data=f"{MADE}images",
        target=0.96,
        lr=0.05,
        epochs=(2, 2, 2, 4),
    ),
}
"""Tasks that need no files, by the name that `tenfold demo --model` takes."""


def image_task(model: str, source: str) -> RaceTask:
    """Return the task of LeNet-5, or another network, on MNIST or digits."""
    is_known, is_mnist = model == "lenet5", source == "mnist"
    names = {"lenet5": "LeNet-5", "mnist": "MNIST"}
    return RaceTask(
        title=f"{names.get(model, model)} on {names.get(source, source)}",
        model=model,
        data=source,
        target=(0.99 if is_mnist else 0.95) if is_known else None,
        lr=0.02 if is_mnist else 0.1,
        epochs=(3 if is_known else 1, 1, 1, 2) if is_mnist else (12, 12, 12, 12),
        is_tiny=not is_mnist,
    )
