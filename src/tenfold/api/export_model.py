"""A run's trained model in a file that is used without Tenfold: a torch program, a state dict, or ONNX."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenfold.common.files import replacing
from tenfold.common.imports import optional_module
from tenfold.errors import ModelError, StoreError
from tenfold.runs import Run
from tenfold.training.flat import flat_dtype

PROGRAM = """\
import torch

model = torch.export.load("{path}").module()
outputs = model(x)  # x: {dtype} of shape {shape}, prepared as for training
"""
STATE = """\
import torch

network = ...  # build it as for training
network.load_state_dict(torch.load("{path}", weights_only=True))
network.eval()
"""
ONNX = """\
import onnxruntime

session = onnxruntime.InferenceSession("{path}")
(outputs,) = session.run(None, {{"x": x}})  # x: {dtype} of shape {shape}, prepared as for training
"""


def export_program(run: Run, path: Path) -> str:
    """Write the model as a torch.export program, for any number of samples; return the lines that load it."""
    program, x = _exported(run)
    with _replaced(path) as file:
        torch.export.save(program, file)
    return _lines(PROGRAM, path, x)


def export_state(run: Run, path: Path) -> str:
    """Write the model's weights as a plain state dict; return the lines that load it."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in run.weights.items()}
    with _replaced(path) as file:
        torch.save(weights, file)
    return STATE.format(path=path)


def export_onnx(run: Run, path: Path) -> str:
    """Write the model as ONNX, for any number of samples; return the lines that run it with onnxruntime."""
    for package in ("onnx", "onnxscript"):
        optional_module(package, "an ONNX file", "onnx")
    exported, x = _exported(run)
    with _quiet():
        program = torch.onnx.export(exported, input_names=["x"], output_names=["outputs"], dynamo=True, verbose=False)
    if program is None:
        raise ModelError(f"the model of run {run.id} cannot be exported to ONNX")
    with _replaced(path) as file:
        file.write(program.model_proto.SerializeToString())
    return _lines(ONNX, path, x)


def _exported(run: Run) -> tuple[Any, torch.Tensor]:
    """Return the model as a program for a batch of any size, and the two samples that it was traced with."""
    shape = run.metadata["data"]["shape"]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise ModelError(
            f"the model of run {run.id} takes several inputs, which are not exported yet; "
            "-o model.pt writes its weights"
        )
    network: nn.Module = run.model
    failure: Exception | None = None
    for x in (torch.zeros(2, *shape, dtype=flat_dtype(network)), torch.zeros(2, *shape, dtype=torch.int64)):
        try:
            with torch.no_grad():
                network(x)
        except Exception as error:  # a network of the user's may raise anything; tokens are integers
            failure = failure or error
            continue
        try:
            with _quiet():
                batch = torch.export.Dim.DYNAMIC
                return torch.export.export(network, (x,), dynamic_shapes=({0: batch},)), x
        except Exception as error:
            failure = error
            break
    reason = str(failure).strip().partition("\n")[0]
    raise ModelError(
        f"the model of run {run.id} cannot be exported as a program: {type(failure).__name__}: {reason}; "
        "-o model.pt writes its weights"
    ) from failure


def _lines(text: str, path: Path, x: torch.Tensor) -> str:
    shape = f"(n, {', '.join(map(str, x.shape[1:]))})"
    return text.format(path=path, dtype=str(x.dtype).removeprefix("torch."), shape=shape)


@contextmanager
def _replaced(path: Path) -> Iterator[Any]:
    try:
        with replacing(path, named_by_user=True) as file:
            yield file
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch's exporters print about their progress."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


EXPORTS: dict[str, Callable[[Run, Path], str]] = {".pt2": export_program, ".pt": export_state, ".onnx": export_onnx}
"""How a model is written, by the ending of the file."""
