"""Where an interrupted run continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.runs import checkpoint, tensor_file


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a run continues from: its folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]
    problem: str = ""
    """What is wrong with a later checkpoint, in whose place this one is used."""

    @property
    def ranks(self) -> Sequence[int]:
        """The saved workers whose states are loaded, in the order of the new workers: all, unless some were lost."""
        return self.manifest.get("ranks") or range(self.manifest["workers"])

    def visible(self) -> list[int]:
        """Return the saved workers whose states are on this host's disk."""
        epoch, workers = self.manifest["epoch"], self.manifest["workers"]
        return [rank for rank in range(workers) if (self.folder / checkpoint.file_name(epoch, rank)).exists()]

    def state(self, rank: int) -> dict[str, Any]:
        """Return the saved state that a worker continues from; where there are more workers now, some share one."""
        saved = self.ranks[rank % len(self.ranks)]
        return dict(tensor_file.load(self.folder / checkpoint.file_name(self.manifest["epoch"], saved)))
