"""What the tests of engines train: importable by workers, and observable from outside through files."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import tenfold

PLAIN: dict[str, Any] = {"optimizer": "sgd", "schedule": "constant", "sync_every": 1, "lr_scaling": "none"}
"""What makes many replicas comparable with one: a round at every step, and one learning rate."""
SMALL = PLAIN | {"model": "mlp", "data": "digits", "hidden": [16], "limit": 300, "epochs": 3, "batch_size": 20}
"""A minute part of a small data set."""
LAWFUL = SMALL | {"batchnorm": True, "dropout": 0.2, "optimizer": "adam", "lr": 0.01}
LAWFUL |= {"schedule": "cosine", "lr_scaling": "sqrt"}
"""And every knob that a world of many could get wrong."""


def train(**fields: Any) -> tenfold.Run:
    """Train with one thread a worker, however many cores there are."""
    return tenfold.train(**{"threads": 1, "oversubscribe": True} | fields)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Compare weights bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def numbered(samples: int) -> tuple[Tensor, Tensor]:
    """Samples whose first feature is their number; two classes."""
    x = torch.zeros(samples, 3)
    x[:, 0] = torch.arange(samples)
    return x, torch.arange(samples) % 2


class Numbered(Dataset[tuple[Tensor, int]]):
    """The same samples, read one by one."""

    def __init__(self, samples: int) -> None:
        self.x, self.y = numbered(samples)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


class Recording(nn.Module):
    """Writes down the number of every sample that it learns from, one line a batch, in a file for each process."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with (self.folder / str(os.getpid())).open("a") as file:
                file.write(" ".join(str(int(number)) for number in x[:, 0]) + "\n")
        return self.linear(x[:, 1:])


class Patient(Recording):
    """Takes a second for each batch after a worker was lost, until another has joined."""

    def __init__(self, folder: str, signals: str) -> None:
        super().__init__(folder)
        self.signals = Path(signals)

    def forward(self, x: Tensor) -> Tensor:
        until = time.monotonic() + 1
        lost, joined = self.signals / "lost", self.signals / "joined"
        while self.training and lost.exists() and not joined.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return super().forward(x)


def recorded(folder: Path) -> dict[int, list[list[int]]]:
    """Return the batches that each process saw."""
    return {int(path.name): [list(map(int, line.split())) for line in path.open()] for path in folder.iterdir()}


_NEVER_RELEASED = threading.Lock()


class Failing(nn.Module):
    """Raises in the worker whose shard holds the sample with this number, when it meets it in this epoch."""

    def __init__(self, number: int = 0, epoch: int = 0, how: str = "raise") -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.number, self.epoch, self.how, self.met = number, epoch, how, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (x[:, 0] == self.number).any():
            self.met += 1
            if self.met > self.epoch:
                self._fail()
        return self.linear(x / 100)

    def _fail(self) -> None:
        if self.how == "raise":
            raise ZeroDivisionError("the model gave up")
        if self.how == "exit":
            os._exit(7)
        if self.how == "sys.exit":
            raise SystemExit("the model left")
        if self.how == "c call":
            ctypes.PyDLL(None).sleep(7)  # keeps Python's lock, so that no other thread runs
            return
        if self.how == "lock":
            _NEVER_RELEASED.acquire()
            _NEVER_RELEASED.acquire()
        os.kill(os.getpid(), getattr(signal, self.how))
        time.sleep(60)


class Blocking(nn.Module):
    """Waits for a lock that is never released, in every worker, from this step on."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        self.steps -= self.training
        if self.steps < 0:
            _NEVER_RELEASED.acquire()
            _NEVER_RELEASED.acquire()
        return self.linear(x / 100)


class Unhurried(nn.Module):
    """Learns digits a step at a time, and leaves the processor to others between two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02 if self.training else 0)
        return self.linear(x.flatten(1))


class Unpicklable:
    """A model that can be sent but not received."""

    __name__ = __qualname__ = "Unpicklable"

    def __call__(self) -> nn.Module:
        return nn.Linear(3, 2)

    def __reduce__(self) -> Any:
        return _refuse, (os.getpid(),)


def _refuse(maker: int) -> Any:
    if os.getpid() != maker:
        raise ImportError("no module named 'far_away'")
    return Unpicklable()


def slow_network(folder: str) -> nn.Module:
    """A network that leaves the number of its process in a folder."""
    (Path(folder) / str(os.getpid())).touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
