"""Files of tensors, such as weights, and the checkpoints of a run: a file for each worker, and a manifest.

Files are written atomically, checked for damage, and read without running code. After each epoch every worker writes
its file; when all have, the manifest with the number of the epoch is replaced. If the processes die at any moment, the
manifest refers to a complete set. The previous checkpoint is kept, too, in case the last one is damaged.
"""

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tenfold.common.files import open_regular, read_regular, read_sealed, replacing, sealed_json, write_atomically
from tenfold.errors import StoreError
from tenfold.runs.claim import check_claim

REPEATED = 2**28
"""Bytes by which a tensor may exceed its file because it repeats stored numbers, as after `expand`."""


def save_tensors(state: Any, path: Path) -> None:
    """Save tensors, numbers, text, lists and dictionaries, with a checksum of each."""
    import torch

    try:
        with replacing(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} cannot be written: {_reason(error)}") from None


def load_tensors(path: Path) -> Any:
    """Load a file of `save_tensors`; raise StoreError if it is damaged."""
    import torch

    with _opened(path) as file:
        _verify(file, path)
        file.seek(0)
        try:
            return torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:
            raise _damaged(path, error) from None


def load_weights(path: Path) -> dict[str, Any]:
    """Load the state of a network; raise StoreError for anything else, such as tensors with made-up sizes."""
    import torch

    weights = load_tensors(path)
    if not isinstance(weights, dict):
        raise StoreError(f"{path} contains a {type(weights).__name__}; it should contain a network's weights by name")
    size = path.stat().st_size
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise StoreError(
                f"{path} contains a {type(tensor).__name__} under {name!r:.80}; it should contain only tensors"
            )
        kind = tensor.layout if tensor.layout is not torch.strided else tensor.device.type
        if kind != "cpu" or tensor.is_quantized or tensor.is_nested:
            raise StoreError(
                f"{path} contains {name} as a {kind} tensor; weights should be dense, unquantized CPU tensors"
            )
        if tensor.numel() * tensor.element_size() > max(size, REPEATED):
            raise StoreError(f"{path} has {size:,} bytes, too few for {name} of shape {tuple(tensor.shape)}")
    return weights


def verify_tensors(path: Path) -> None:
    """Raise StoreError if a file that `save_tensors` wrote is missing or damaged."""
    with _opened(path) as file:
        _verify(file, path)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise StoreError(f"there is no file {path}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield file


def _verify(file: BinaryIO, path: Path) -> None:
    """Raise StoreError for a damaged file.

    torch writes a zip archive with a checksum of every tensor but does not verify the checksums when reading. It never
    compresses, so a compressed archive, which would grow in memory, was not written by torch.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed")
            damaged = archive.testzip()
    except Exception as error:  # the type of error depends on the location of the damage
        raise _damaged(path, error) from None
    if damaged is not None:
        raise StoreError(f"{path} is damaged and cannot be read: the checksum of {damaged} is wrong")


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})")


def _reason(error: BaseException) -> str:
    """Return why a write failed; torch raises a RuntimeError that hides the system's error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


MANIFEST = "manifest.json"
BEFORE = "manifest-before.json"
"""The manifest of the checkpoint before the last."""
FILES = "files"
"""In a manifest: the workers' files in the folder when it was written, without the files of other hosts."""


def file_name(epoch: int, rank: int) -> str:
    """Return the name of the file with a worker's checkpoint after an epoch."""
    return f"epoch-{epoch}-worker-{rank}.pt"


def epoch_of(path: Path) -> int:
    """Return the epoch after which a worker's checkpoint was written; -1 if its name does not contain it."""
    number = path.name.removeprefix("epoch-").partition("-")[0]
    return int(number) if number.isdecimal() else -1


def commit(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the workers' files of `manifest["epoch"]` the checkpoint to resume from, and keep only the one before it.

    Raises RunTakenOver if another process has taken over the run of this folder.
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
    """Return the manifest of the last complete, undamaged checkpoint, and the damage of a later one.

    The manifest is None before the first checkpoint. Files of workers on other hosts cannot be checked here.
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
                verify_tensors(path)
        except StoreError as error:
            problems.append(str(error))
            continue
        note = f"{'; '.join(problems)}; continuing from epoch {manifest['epoch']} instead" if problems else ""
        return manifest, note
    if problems:
        raise StoreError(f"{'; '.join(problems)}; delete the folder {folder} to train again from the beginning")
    return None, ""


def _files_of(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Return the paths of a checkpoint's files on this host."""
    return list(folder.glob(f"epoch-{manifest['epoch']}-worker-*.pt"))


@dataclass(frozen=True)
class Resumption:
    """The checkpoint from which a run continues: its folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]
    problem: str = ""
    """The damage of a later checkpoint, which this one replaces."""

    @property
    def ranks(self) -> Sequence[int]:
        """The saved workers whose states are loaded, in the order of the new workers; lost workers are omitted."""
        return self.manifest.get("ranks") or range(self.manifest["workers"])

    def visible(self) -> list[int]:
        """Return the saved workers whose states are on this host's disk."""
        epoch, workers = self.manifest["epoch"], self.manifest["workers"]
        return [rank for rank in range(workers) if (self.folder / file_name(epoch, rank)).exists()]

    def state(self, rank: int) -> dict[str, Any]:
        """Return the saved state for a worker; if there are more workers than before, some share a state."""
        saved = self.ranks[rank % len(self.ranks)]
        path = self.folder / file_name(self.manifest["epoch"], saved)
        state = load_tensors(path)
        if not isinstance(state, dict):
            raise StoreError(f"{path} contains a {type(state).__name__}; it should contain the state of a worker")
        return state


def remove(folder: Path) -> None:
    """Remove the checkpoints of a run that has finished."""
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, manifest: dict[str, Any]) -> None:
    write_atomically(path, sealed_json(manifest).encode())


def _read(path: Path) -> dict[str, Any] | None:
    """Return a manifest; None if it is missing or damaged."""
    try:
        return read_sealed(read_regular(path))
    except OSError:
        return None
