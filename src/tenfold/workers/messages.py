"""What a worker tells its supervisor, and what it hears back. All workers say the same kind of thing in turn."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """An epoch is over: what this worker learnt from, and its share of the outputs on the watched part."""

    epoch: int
    step: int
    seconds: float
    loss: float
    """Sum over samples."""
    samples: int
    outputs: Any


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """This worker's share of the outputs on the watched part, in the middle of an epoch."""

    epoch: int
    step: int
    seconds: float
    outputs: Any


@dataclass(frozen=True, kw_only=True)
class Saved:
    """This worker's checkpoint of an epoch is on disk, or could not be written."""

    epoch: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """This worker is done: its share of the outputs on the test part, its times, and from rank 0 the weights."""

    step: int
    seconds: float
    times: dict[str, float]
    bytes_moved: int
    outputs: Any
    weights: dict[str, Any] | None


Message = Evaluated | Reviewed | Saved | Finished


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do after an epoch: go on or stop; whether it was the best so far; and whether it can be resumed from."""

    stop: bool = False
    best: bool = False
    saved: bool = True
