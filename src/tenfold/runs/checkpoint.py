"""Checkpoints of a run on disk: a complete set of files, one for each worker, and a manifest that names their epoch.

After each epoch every worker writes its own file; when all have, the manifest that names the epoch is replaced.
Whenever the processes die, the manifest names a complete set. The checkpoint before it is kept as well, to continue
from if the last one turns out to be damaged.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.common.files import read_regular, write_atomically
from tenfold.errors import StoreError
from tenfold.runs import tensor_file
from tenfold.runs.storage.claim import check_claim

MANIFEST = "manifest.json"
BEFORE = "manifest-before.json"
"""The manifest of the checkpoint before the last."""
CHECKSUM = "checksum"
FILES = "files"
"""In a manifest: the workers' files that were in the folder when it was written; those of other hosts were not."""


def file_name(epoch: int, rank: int) -> str:
    """Return the name of the file with a worker's checkpoint after an epoch."""
    return f"epoch-{epoch}-worker-{rank}.pt"


def epoch_of(path: Path) -> int:
    """Return after how many epochs a worker's checkpoint was written; -1 where its name does not say."""
    number = path.name.removeprefix("epoch-").partition("-")[0]
    return int(number) if number.isdecimal() else -1


def commit(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the workers' files of `manifest["epoch"]` the checkpoint to resume from, and keep only the one before it.

    Raises RunTakenOver where another process has taken the run of this folder.
    """
    check_claim(folder.parent)
    before = _read(folder / MANIFEST)
    kept = {manifest["epoch"]}
    try:
        if before is not None and before["epoch"] != manifest["epoch"]:
            _write(folder / BEFORE, before)
        _write(folder / MANIFEST, manifest | {FILES: sorted(path.name for path in _files_of(folder, manifest))})
    except OSError as error:
        raise StoreError(f"{folder / MANIFEST} cannot be written: {error.strerror}") from None
    earlier = _read(folder / BEFORE)
    kept |= {earlier["epoch"]} if earlier is not None else set()
    prefixes = tuple(f"epoch-{epoch}-" for epoch in kept)
    for path in folder.glob("epoch-*.pt"):
        if not path.name.startswith(prefixes):
            with suppress(OSError):
                path.unlink()


def find_undamaged(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the manifest of the last checkpoint that is whole and undamaged, and the damage of a later one.

    The manifest is None before the first checkpoint. Of workers on other hosts, the files are not here to be checked.
    """
    problems = []
    for name in (MANIFEST, BEFORE):
        if not (folder / name).exists():
            if name == MANIFEST and (folder / BEFORE).exists():
                problems.append(f"there is no file {folder / name}")
            continue
        manifest = _read(folder / name)
        if manifest is None:
            problems.append(f"{folder / name} is damaged")
            continue
        names = manifest.pop(FILES, ())
        try:
            for path in {*_files_of(folder, manifest), *(folder / Path(str(name)).name for name in names)}:
                tensor_file.verify(path)
        except StoreError as error:
            problems.append(str(error))
            continue
        note = f"{'; '.join(problems)}; continuing from epoch {manifest['epoch']} instead" if problems else ""
        return manifest, note
    if problems:
        raise StoreError(f"{'; '.join(problems)}; delete the folder {folder} to train again from the beginning")
    return None, ""


def _files_of(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Return the workers' files of a checkpoint that are here."""
    return list(folder.glob(f"epoch-{manifest['epoch']}-worker-*.pt"))


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a run continues from: its folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]
    problem: str = ""
    """The damage of a later checkpoint, which this one replaces."""

    @property
    def ranks(self) -> Sequence[int]:
        """The saved workers whose states are loaded, in the order of the new workers: all, unless some were lost."""
        return self.manifest.get("ranks") or range(self.manifest["workers"])

    def visible(self) -> list[int]:
        """Return the saved workers whose states are on this host's disk."""
        epoch, workers = self.manifest["epoch"], self.manifest["workers"]
        return [rank for rank in range(workers) if (self.folder / file_name(epoch, rank)).exists()]

    def state(self, rank: int) -> dict[str, Any]:
        """Return the saved state that a worker continues from; where there are more workers now, some share one."""
        saved = self.ranks[rank % len(self.ranks)]
        path = self.folder / file_name(self.manifest["epoch"], saved)
        state = tensor_file.load(path)
        if not isinstance(state, dict):
            raise StoreError(f"{path} holds a {type(state).__name__}; it should hold the state of a worker")
        return state


def remove(folder: Path) -> None:
    """Remove the checkpoints of a run that has finished."""
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, manifest: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(manifest | {CHECKSUM: _checksum(manifest)}).encode())


def _read(path: Path) -> dict[str, Any] | None:
    """Return a manifest; None where it is missing or damaged."""
    try:
        manifest = json.loads(read_regular(path))
        good = manifest.pop(CHECKSUM, None) == _checksum(manifest)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    return manifest if good else None


def _checksum(manifest: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(manifest))
    return hashlib.blake2b(json.dumps(as_read, sort_keys=True).encode(), digest_size=16).hexdigest()
