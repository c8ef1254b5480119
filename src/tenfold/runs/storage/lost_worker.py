"""The record of a worker that was lost while the others continued."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenfold.errors import WorkerLost
from tenfold.runs.events import Stopwatch, WorkerDropped

if TYPE_CHECKING:
    from tenfold.runs.checkpoint import Resumption


@dataclass(frozen=True)
class LostWorker:
    """A worker that was lost, after which the others continued: an entry of `lost` in a result and in a checkpoint."""

    worker: int
    why: str
    left: int
    """How many workers continued."""
    epoch: int
    """The epoch, from 1, that they continued with."""
    step: int | None = None
    """Where the lost worker is replaced: the last step, over the run, that includes its work."""
    joined: int | None = None
    """The step after which another worker took its place."""

    @classmethod
    def of(cls, error: WorkerLost, left: int, resumption: "Resumption | None") -> "LostWorker":
        """Return the worker that an error reports as lost; `resumption` is where those who are left continue."""
        return cls(error.rank, str(error), left, (resumption.manifest["epoch"] if resumption else 0) + 1)

    def event(self, stopwatch: Stopwatch) -> WorkerDropped:
        """Return the event that reports it."""
        workers = "1 worker continues" if self.left == 1 else f"{self.left} workers continue"
        text = f"{self.why}; {workers} from epoch {self.epoch}"
        return WorkerDropped(at=stopwatch.now(), text=text, epoch=self.epoch - 1, worker=self.worker)


def lost_in(manifest: Mapping[str, Any]) -> list[LostWorker]:
    """Return the lost workers that a checkpoint's manifest lists."""
    return [LostWorker(**one) for one in manifest.get("lost", [])]
