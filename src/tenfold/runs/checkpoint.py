"""Weights and checkpoints on disk: whole or absent, and readable without running any code from the file.

After each epoch every worker writes a file of its own; when all have, the manifest that names the epoch is replaced.
Whenever the processes die, the manifest names a complete set.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenfold.common.files import replacing, write_atomically
from tenfold.errors import StoreError

MANIFEST = "manifest.json"


def save(state: Any, path: Path) -> None:
    """Save tensors, numbers, text, lists and dictionaries."""
    import torch

    try:
        with replacing(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} cannot be written: {_reason(error)}") from None


def load(path: Path) -> Any:
    """Load what `save` wrote."""
    import torch

    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise StoreError(f"there is no file {path}") from None
    except Exception as error:
        raise StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})") from None


def file_name(epoch: int, rank: int) -> str:
    """Return the name of a worker's checkpoint after so many epochs."""
    return f"epoch-{epoch}-worker-{rank}.pt"


def commit(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the workers' files of `manifest["epoch"]` the checkpoint to resume from, and remove older ones."""
    try:
        write_atomically(folder / MANIFEST, json.dumps(manifest).encode())
    except OSError as error:
        raise StoreError(f"{folder / MANIFEST} cannot be written: {error.strerror}") from None
    for path in folder.glob("epoch-*.pt"):
        if not path.name.startswith(f"epoch-{manifest['epoch']}-"):
            with suppress(OSError):
                path.unlink()


def latest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the last complete checkpoint; None before the first."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if not isinstance(manifest, dict) or not isinstance(manifest.get("epoch"), int):
            raise ValueError("it names no epoch")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder / MANIFEST} is damaged ({error}); delete the folder to start anew") from None
    return dict(manifest)


def remove(folder: Path) -> None:
    """Remove the checkpoints of a run that has finished."""
    shutil.rmtree(folder, ignore_errors=True)


def _reason(error: BaseException) -> str:
    """Return why a write failed; torch reports it as a RuntimeError of its own, raised over the system's reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)
