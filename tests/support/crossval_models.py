"""Networks and programs for the tests of cross-validation; a module of their own, so that processes import them."""

import os
import signal
import threading
import warnings
from typing import Any

import torch
from torch import Tensor, nn

MARK = 999.0
SMALL: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "hidden": [16],
    "limit": 150,
    "epochs": 3,
    "batch_size": 25,
    "folds": 4,
    "threads": 1,
}


class Touchy(nn.Module):
    """Fails, or dies, when it has to learn from the marked sample."""

    deadly = False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x == MARK).any()):
            if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this sample is bad")
        return self.linear(x)


class Deadly(Touchy):
    deadly = True


class Stuck(Touchy):
    """Warns, and waits for a lock that is never released when it meets the marked sample."""

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("be careful", stacklevel=1)
        if self.training and bool((x == MARK).any()):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return self.linear(x)


class Late(Deadly):
    """Learns from the marked sample once, and dies the second time."""

    met = False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x == MARK).any()) and not self.met:
            self.met = True
            return self.linear(x)
        return super().forward(x)


class Calm(Touchy):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.clamp(max=1.0))


def marked(count: int = 1) -> dict[str, Any]:
    """Data of which so many training samples are marked."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    x[:count, 0] = MARK
    return {"train": (x, y), "test": (torch.randn(10, 2), torch.arange(10) % 2)}


def validate_until_a_fold_is_done(runs: str) -> None:
    """Cross-validate, and die by SIGKILL as soon as the first fold is finished."""
    import tenfold
    from tenfold.runs.events import FoldChanged

    def die(event: Any) -> None:
        if isinstance(event, FoldChanged) and event.status == "finished":
            os.kill(os.getpid(), signal.SIGKILL)

    tenfold.cross_validate(**SMALL, runs=runs, listen=die)
