"""Files of tensors, such as weights: whole or absent, checked for damage, and read without running code from them."""

import zipfile
from pathlib import Path
from typing import Any

from tenfold.common.files import replacing
from tenfold.errors import StoreError


def save(state: Any, path: Path) -> None:
    """Save tensors, numbers, text, lists and dictionaries, with a checksum of each."""
    import torch

    try:
        with replacing(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} cannot be written: {_reason(error)}") from None


def load(path: Path) -> Any:
    """Load what `save` wrote, if not a bit of it has changed since."""
    import torch

    verify(path)
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})") from None


def verify(path: Path) -> None:
    """Raise StoreError if a file that `save` wrote is missing or damaged.

    torch writes a zip archive with a checksum of every tensor, but does not compare them when it reads.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        raise StoreError(f"there is no file {path}") from None
    except Exception as error:  # what a damaged archive raises depends on the place of the damage
        raise StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})") from None
    if damaged is not None:
        raise StoreError(f"{path} is damaged and cannot be read: the checksum of {damaged} is wrong")


def _reason(error: BaseException) -> str:
    """Return why a write failed; torch reports it as a RuntimeError of its own, raised over the system's reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)
