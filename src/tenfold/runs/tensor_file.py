"""Files of tensors, such as weights: whole or absent, checked for damage, and read without running code from them."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tenfold.common.files import open_regular, replacing
from tenfold.errors import StoreError

REPEATED = 2**28
"""Bytes that a tensor may have beyond those of its file, where it repeats stored numbers, as `expand` does."""


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

    with _opened(path) as file:
        _verify(file, path)
        file.seek(0)
        try:
            return torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:
            raise _damaged(path, error) from None


def load_weights(path: Path) -> dict[str, Any]:
    """Load the state of a network; StoreError for anything else, such as tensors without or with made-up numbers."""
    import torch

    weights = load(path)
    if not isinstance(weights, dict):
        raise StoreError(f"{path} holds a {type(weights).__name__}; it should hold a network's weights by name")
    size = path.stat().st_size
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise StoreError(f"{path} holds a {type(tensor).__name__} as {name!r:.80}; it should hold only tensors")
        kind = tensor.layout if tensor.layout is not torch.strided else tensor.device.type
        if kind != "cpu" or tensor.is_quantized or tensor.is_nested:
            raise StoreError(f"{path} holds {name} as a tensor of another kind ({kind}) than weights are")
        if tensor.numel() * tensor.element_size() > max(size, REPEATED):
            raise StoreError(f"{path} has {size:,} bytes, too few for {name} of shape {tuple(tensor.shape)}")
    return weights


def verify(path: Path) -> None:
    """Raise StoreError if a file that `save` wrote is missing or damaged."""
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

    torch writes a zip archive with a checksum of every tensor, but does not compare them when it reads. It does not
    compress, so that an archive which would grow in memory is not one of its own.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed")
            damaged = archive.testzip()
    except Exception as error:  # the error of a damaged archive depends on the place of the damage
        raise _damaged(path, error) from None
    if damaged is not None:
        raise StoreError(f"{path} is damaged and cannot be read: the checksum of {damaged} is wrong")


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} is damaged and cannot be read ({type(error).__name__}: {error})")


def _reason(error: BaseException) -> str:
    """Return why a write failed; torch reports it as a RuntimeError of its own, raised over the system's reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)
