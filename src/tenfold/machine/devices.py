"""Devices: names such as "auto", the GPUs of this machine, and their initialization."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from tenfold.errors import MachineError
from tenfold.registry import suggest

if TYPE_CHECKING:
    import torch
    from torch import nn

_KNOWN = ("auto", "cpu", "cuda", "cuda:<number>", "mps")
_ALIASES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
_ROWS, _FEATURES, _CLASSES = 64, 784, 10
"""The sizes of a small layer, large enough that torch divides the work among its threads."""
_MOST_LAYERS = 32


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch can use; `memory` in bytes."""

    device: str
    name: str
    memory: int


def resolve(device: str) -> "torch.device":
    """Return the torch device named `device`: cpu, cuda, cuda:1, mps, or auto (cuda, then mps, then cpu)."""
    import torch

    kind, colon, index = device.partition(":")
    if device == "auto":
        kind = "cuda" if torch.cuda.is_available() and gpus() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(kind)
    if kind not in ("cpu", "cuda", "mps") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise MachineError(f"unknown device '{device}'; {suggest(device, _KNOWN, _ALIASES)}")
    if kind == "cuda":
        _require_cuda(device, int(index or 0))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise MachineError(f"device 'mps' needs a Mac with Apple silicon, but torch finds none; use {_alternative()}")
    return torch.device(device)


def gpus() -> list[Gpu]:
    """Return the GPUs that torch can use. This starts CUDA in this process, so workers must be spawned, not forked."""
    import torch

    if torch.cuda.is_available():
        try:
            properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        except RuntimeError as error:
            if "forked" not in str(error):
                raise
            return []  # a process that was forked from one that uses CUDA cannot use it
        return [Gpu(f"cuda:{index}", gpu.name, gpu.total_memory) for index, gpu in enumerate(properties)]
    if torch.backends.mps.is_available():
        return [Gpu("mps", "Apple GPU", torch.mps.recommended_max_memory())]
    return []


def supports_graphs(device: "torch.device") -> bool:
    """Return whether work on this device can be recorded into a graph (`training/stack.py`)."""
    return device.type == "cuda"


def supports_bf16(device: "torch.device") -> bool:
    """Return whether this is a GPU that multiplies bfloat16 in hardware."""
    if device.type != "cuda":
        return False
    import torch

    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def synchronize(device: "torch.device") -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def start_libraries(network: "nn.Module", device: "torch.device", sizes: Iterable[int]) -> None:
    """Initialize the libraries behind torch before training is timed, because the first step takes far longer.

    It performs the computations of the network's layers with batches of these sizes on tensors of ones, without calling
    the network or drawing random numbers. This loads kernels, creates handles and starts threads: about 10 ms once per
    process on a CPU, where one small layer is enough; several hundred on a GPU, which has kernels for different shapes.
    """
    import torch
    from torch import nn

    layers = list(network.modules())
    convolves = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers)
    shapes = dict.fromkeys((layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear))
    with suppress(RuntimeError):  # such as too little memory: the first real step raises it again
        _start(device, torch.get_num_threads(), convolves)
        if device.type == "cuda":
            for (inputs, outputs), size in product(list(shapes)[:_MOST_LAYERS], sizes):
                _compute_layer(device, size, inputs, outputs)
            torch.cuda.synchronize(device)


def has_nvidia_card(root: Path = Path("/")) -> bool:
    """Return whether Linux sees an NVIDIA display or compute card, with or without a driver for it."""
    if any((root / "proc/driver/nvidia/gpus").glob("*")) or (root / "dev/nvidia0").exists():
        return True
    cards = (root / "sys/bus/pci/devices").glob("*/vendor")
    return any(
        vendor.read_text().strip() == "0x10de" and vendor.with_name("class").read_text().startswith("0x03")
        for vendor in cards
    )


def built_for_gpus() -> bool:
    """Return whether torch was built with CUDA (or AMD's ROCm, which has the same name in torch)."""
    import torch

    return bool(torch.version.cuda or torch.version.hip)


def _require_cuda(device: str, index: int) -> None:
    import torch

    if not built_for_gpus():
        raise MachineError(
            f"device '{device}' needs a CUDA build of torch, but torch {torch.__version__} is none; "
            f"install one, or use {_alternative()}"
        )
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not num_gpus:
        raise MachineError(
            f"device '{device}' was requested, but torch {torch.__version__} finds no usable GPU; "
            f"check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or use {_alternative()}"
        )
    if index >= num_gpus:
        names = ", ".join(f"'cuda:{number}'" for number in range(num_gpus))
        raise MachineError(f"device '{device}' does not exist; torch finds {names}")
    if not gpus():
        raise MachineError(
            f"device '{device}' cannot be used in this process, which was forked from one that uses a GPU; start it "
            f'with multiprocessing.get_context("spawn"), or use {_alternative()}'
        )


def _alternative() -> str:
    import torch

    return "'mps' or 'cpu'" if torch.backends.mps.is_available() else "'cpu'"


@cache
def _start(device: "torch.device", _threads: int, convolves: bool) -> None:
    """Compute a small layer, and a convolution if `convolves`; this also starts torch's threads."""
    import torch
    from torch.nn import functional

    _compute_layer(device, _ROWS, _FEATURES, _CLASSES)
    if convolves:
        images = torch.ones(2, 1, 28, 28, device=device)
        kernel = torch.ones(8, 1, 5, 5, device=device, requires_grad=True)
        functional.max_pool2d(functional.conv2d(images, kernel).relu(), 2).sum().backward()  # type: ignore[no-untyped-call]


def _compute_layer(device: "torch.device", size: int, inputs: int, outputs: int) -> None:
    """Compute the gradient of one layer."""
    import torch
    from torch.nn import functional

    x = torch.ones(size, inputs, device=device, requires_grad=True)
    weight = torch.ones(outputs, inputs, device=device, requires_grad=True)
    bias = torch.ones(outputs, device=device, requires_grad=True)
    targets = torch.zeros(size, dtype=torch.int64, device=device)
    functional.cross_entropy(functional.linear(x, weight, bias).relu(), targets).backward()  # type: ignore[no-untyped-call]
