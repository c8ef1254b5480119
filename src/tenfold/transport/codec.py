"""The messages between ranks: JSON for small values, raw bytes for tensors, and a name and a message for errors.

Nothing is unpickled: a peer can send a wrong value, but never code. Decoding creates JSON values, tensors, paths,
tuples and the dataclasses passed to `register`, and raises an error for anything else.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenfold import errors
from tenfold.common.imports import describe_error, user_frames
from tenfold.errors import TenfoldError, TrainingError, WorkerLost

MOST_HEADER_BYTES = 1 << 26
MOST_TENSOR_BYTES = 1 << 34
"""The largest message that is accepted, without and with its tensors."""
MOST_ERROR_CHARACTERS = 20_000

TAG = "$type"
"""The key that marks values that JSON cannot represent."""
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TenfoldError)
} | {"RuntimeError": RuntimeError}
"""The errors that keep their type; any other is sent as the nearest of its bases, or as a RuntimeError."""

_registered: dict[str, type[Any]] = {}


def register(*types: type[Any]) -> None:
    """Allow these dataclasses in messages: decoding builds them from their fields."""
    for kind in types:
        if not is_dataclass(kind) or _registered.setdefault(kind.__name__, kind) is not kind:
            raise TypeError(f"{kind.__name__} is not a dataclass, or another type of this name is registered")


def encode(value: Any) -> tuple[bytes, list[Tensor]]:
    """Return a value as a JSON header and the bytes of its tensors, in the order in which they are received."""
    tensors: list[Tensor] = []
    written = _write(value, tensors)
    shapes = [describe_tensor(tensor) for tensor in tensors]
    header = json.dumps({"value": written, "tensors": shapes}).encode()
    if len(header) > MOST_HEADER_BYTES:
        raise TrainingError(
            f"a message to another rank has {len(header):,} bytes besides its tensors, more than {MOST_HEADER_BYTES:,}"
        )
    return header, [as_bytes(tensor) for tensor in tensors]


class Received:
    """A received header: buffers for its tensors, and the value once these are filled."""

    def __init__(self, header: bytes) -> None:
        try:
            content = json.loads(header)
            self._written = content["value"]
            self._tensors = empty_tensors(content["tensors"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unreadable(error) from None
        self.buffers = [as_bytes(tensor) for tensor in self._tensors]
        """Where the bytes of each tensor go."""

    def value(self) -> Any:
        """Return the value; called when all buffers are filled."""
        try:
            return _read(self._written, self._tensors)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise _unreadable(error) from None


def describe_tensor(tensor: Tensor) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"tensors of type {name} cannot be sent to another rank; supported: {', '.join(DTYPES)}")
    return [name, list(tensor.shape)]


def empty_tensors(descriptions: Sequence[Any]) -> list[Tensor]:
    """Return empty tensors with these types and shapes, after checking types, shapes and sizes."""
    checked: list[tuple[torch.dtype, list[int]]] = []
    for name, shape in descriptions:
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{shape!r} is not a shape")
        checked.append((DTYPES[name], shape))
    nbytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in checked)
    if nbytes > MOST_TENSOR_BYTES:
        raise ValueError(f"the tensors of one message have {nbytes:,} bytes, more than {MOST_TENSOR_BYTES:,}")
    return [torch.empty(shape, dtype=dtype) for dtype, shape in checked]


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor's content as bytes; without a copy if it is contiguous on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def encode_error(error: BaseException | None, rank: int) -> bytes:
    """Return the message to other ranks about an error on `rank`; None means an interrupt."""
    if error is None or isinstance(error, KeyboardInterrupt):
        error = WorkerLost(rank, f"worker {rank} was interrupted")
    if isinstance(error, TenfoldError):
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in ERRORS)
        message = str(error) if isinstance(error, WorkerLost) else f"worker {rank}: {error}"
    else:
        kind = "UserCodeError" if user_frames(error) else "RuntimeError"
        said = describe_error(error)[-MOST_ERROR_CHARACTERS:]
        message = f"worker {rank}: {said}" if kind == "UserCodeError" else f"worker {rank} failed:\n{said}"
    about = error.rank if isinstance(error, WorkerLost) else rank
    return json.dumps({"type": kind, "message": message[: 2 * MOST_ERROR_CHARACTERS], "rank": about}).encode()


def decode_error(content: bytes | bytearray) -> Exception:
    """Return the error that another rank reported, or an error if its message cannot be read."""
    try:
        if len(content) > 16 * MOST_ERROR_CHARACTERS:
            raise ValueError("it is too long")
        report = json.loads(bytes(content))
        kind, message, rank = ERRORS[report["type"]], report["message"], report["rank"]
        if not isinstance(message, str) or type(rank) is not int:
            raise TypeError("it has the wrong fields")
    except (ValueError, KeyError, TypeError, RecursionError):
        return TrainingError(
            "another rank failed, and its error message cannot be read; all ranks must run the same version of "
            "tenfold, on a private network"
        )
    return WorkerLost(rank, message) if kind is WorkerLost else kind(message)


def _write(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value as JSON types, with tensors replaced by their indices."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_write(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {TAG: "tuple", "items": [_write(item, tensors) for item in value]}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or TAG in value:
            return {
                TAG: "dict",
                "items": [[_write(key, tensors), _write(item, tensors)] for key, item in value.items()],
            }
        return {key: _write(item, tensors) for key, item in value.items()}
    if isinstance(value, Tensor):
        tensors.append(value)
        return {TAG: "tensor", "number": len(tensors) - 1}
    if isinstance(value, Path):
        return {TAG: "path", "text": str(value)}
    if _registered.get(type(value).__name__) is type(value):
        return {
            TAG: type(value).__name__,
            "fields": {field.name: _write(getattr(value, field.name), tensors) for field in fields(value)},
        }
    raise TypeError(f"an object of {type(value).__name__} cannot be sent to another rank")


def _read(written: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(written, list):
        return [_read(item, tensors) for item in written]
    if not isinstance(written, dict):
        return written
    match written.get(TAG):
        case None:
            return {key: _read(item, tensors) for key, item in written.items()}
        case "tuple":
            return tuple(_read(item, tensors) for item in written["items"])
        case "dict":
            return {_read(key, tensors): _read(item, tensors) for key, item in written["items"]}
        case "tensor":
            return tensors[written["number"]]
        case "path":
            return Path(written["text"])
        case name:
            return _registered[name](**{field: _read(item, tensors) for field, item in written["fields"].items()})


def _unreadable(error: Exception) -> TrainingError:
    return TrainingError(
        f"a message from another rank cannot be read ({type(error).__name__}: {error}); all ranks must run the same "
        "version of tenfold"
    )
