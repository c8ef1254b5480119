"""One rank of a launcher: it joins the others, checks that all train the same experiment, and watches for stalls."""

import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, get_args

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from tenfold.common import PARTS, __version__
from tenfold.common.files import open_regular
from tenfold.common.imports import is_users
from tenfold.data import Part, Splits, Tensors
from tenfold.data.part import Indices, as_indices, digest, move, select_rows, tree_leaves, tree_map
from tenfold.errors import DataError, ExperimentError, TrainingError, WorkerLost
from tenfold.launchers import World
from tenfold.machine import devices
from tenfold.machine.liveness import LOOK_SECONDS, LifeWatch, WorkerProgress, describe_stall
from tenfold.machine.rank_guard import start_guard
from tenfold.runs import checkpoint
from tenfold.runs.events import Emit, Event, Metric, Note, Span, Warned
from tenfold.training.evaluation import EvaluatedShare
from tenfold.training.metrics import ExactSum, PairCounts
from tenfold.transport import Network
from tenfold.transport.codec import describe_tensor, empty_tensors, register
from tenfold.transport.meeting import REPORT_STOP
from tenfold.transport.network import LEAVE_SECONDS
from tenfold.workers.coordinator import Coordinator, Decision, Message, Saved
from tenfold.workers.task import Task


@contextmanager
def watch_progress(world: World, network: Network, stall_after: float | None) -> Iterator[WorkerProgress]:
    """Yield the progress of this rank; a thread reports to all ranks if there is none for too long.

    The training thread may then be blocked forever, so the process ends after the others had time to receive the
    reason. If the blocked thread holds Python's global lock, no other thread runs, and the rank's guard ends the
    process.
    """
    guard, over = start_guard(world, REPORT_STOP), threading.Event()
    progress = guard.watch_progress(stall_after) if guard is not None else WorkerProgress()
    network.waiting = progress.mark_waiting
    thread = threading.Thread(
        target=_watch, args=(network, progress, stall_after, over), daemon=True, name="tenfold-stall-watch"
    )
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        network.waiting = None
        progress.clear()


def _watch(network: Network, progress: WorkerProgress, stall_after: float | None, over: threading.Event) -> None:
    watch = LifeWatch([progress], stall_after)
    while not over.wait(LOOK_SECONDS):
        now = time.monotonic()
        watch.look(now)
        if stalled := watch.find_stalled(now, {0: os.getpid()}):
            name = f"worker {network.rank} (process {os.getpid()} on {socket.gethostname()})"
            network.report_failure(WorkerLost(network.rank, f"{name} {describe_stall(stalled[0], stall_after)}"))
            if not over.wait(LEAVE_SECONDS):
                os._exit(1)


class Scattered(Part):
    """A part with only some of its samples on this rank, under their indices in the whole part, and all targets."""

    def __init__(self, rows: Tensor, x: Any, y: Tensor) -> None:
        """`rows` are the indices of the samples on this rank; `y` has the targets of all samples."""
        self.rows = rows
        self.x = x
        self.y = y
        self._place = torch.full((len(y),), -1, dtype=torch.int64, device=y.device)
        self._place[rows] = torch.arange(len(rows), device=y.device)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> Tensor:
        return self.y

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Tensor]]:
        for batch in indices:
            rows = as_indices(batch, self.y.device)
            places = self._place.index_select(0, rows)
            if places.numel() and int(places.min()) < 0:
                raise DataError('a rank requested a sample that another rank holds; set data.distribute = "each"')
            yield select_rows(self.x, places), self.y.index_select(0, rows)

    def subset(self, indices: Indices) -> Tensors:
        """Copy samples of this rank into a separate part."""
        x, y = next(self.batches([indices]))
        return Tensors(x, y)

    def fingerprint(self) -> str:
        return digest(self.rows, *tree_leaves(self.x), self.y)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Scattered":
        everything = (self.rows, self.x, self.y)
        return Scattered(*(tree_map(partial(move, device=device, dtype=dtype), item) for item in everything))


def scatter(network: Network, task: Task | None) -> Splits:
    """Send every rank its share of rank 0's data, and return this rank's share; other ranks have no task yet."""
    if task is None:
        return _receive(network, network.broadcast())
    network.broadcast(_described(task, network.size))
    parts: dict[str, Any] = dict(task.splits.parts)
    for rank in range(1, network.size):  # one after the other: only one share at a time is copied
        for name, part in parts.items():
            rows = _rows(task, name, rank)
            tensors = (rows, *tree_leaves(select_rows(part.x, rows.to(part.device))), part.y)
            network.exchange([(rank, tensor.cpu().contiguous()) for tensor in tensors], [])
    return task.splits


def _receive(network: Network, announced: dict[str, Any]) -> Splits:
    parts: dict[str, Any] = {}
    for name, (x, y, counts) in announced["parts"].items():
        count = counts[network.rank]
        rows, targets = empty_tensors([["int64", [count]], y])
        samples = _empty_inputs(x, count)
        network.exchange([], [(0, tensor) for tensor in (rows, *tree_leaves(samples), targets)])
        parts[name] = Scattered(rows, samples, targets)
    about = announced["about"]
    if about["groups"] is not None:
        about["groups"] = np.array(about["groups"])
    return Splits(**about, **parts)


def _empty_inputs(described: Any, count: int) -> Any:
    """Return empty tensors for `count` samples with the described structure: a tensor, or a tuple or dict of them."""
    if isinstance(described, dict):
        return {key: _empty_inputs(item, count) for key, item in described.items()}
    if isinstance(described, tuple):
        return tuple(_empty_inputs(item, count) for item in described)
    return empty_tensors([[described[0], [count, *described[1]]]])[0]


def _described(task: Task, size: int) -> dict[str, Any]:
    """Return the header for the receiving ranks: types, shapes, and counts."""
    parts: dict[str, Any] = {}
    for name, part in task.splits.parts.items():
        if not isinstance(part, Tensors):
            raise DataError(
                f'data.distribute = "scatter" needs data in memory, but the {name} part of {task.splits.name} is read '
                'sample by sample; set data.distribute = "each"'
            )
        counts = [len(_rows(task, name, rank)) for rank in range(size)]
        samples = tree_map(lambda tensor: describe_tensor(tensor[0]), part.x)
        parts[name] = (samples, describe_tensor(part.y), counts)
    about = {field.name: getattr(task.splits, field.name) for field in fields(task.splits) if field.name not in PARTS}
    if task.splits.groups is not None:
        about["groups"] = task.splits.groups.tolist()
    about["numbers"] = {}  # rank 0 records for all
    return {"parts": parts, "about": about}


def _rows(task: Task, name: str, rank: int) -> Tensor:
    """Return the indices of the samples that a rank trains on or evaluates."""
    if name == "train":
        return torch.as_tensor(task.shards[rank], dtype=torch.int64)
    return task.share(getattr(task.splits, name), rank)


@dataclass(frozen=True)
class Orders:
    """Rank 0's instructions to the other ranks before training."""

    checkpoints: Path | None
    manifest: dict[str, Any] | None
    now: float
    """Seconds since the run began."""


register(Orders, Metric, Span, Note, Warned, Decision, EvaluatedShare, ExactSum, PairCounts, *get_args(Message))


class EndedByLauncher(WorkerLost):
    """The launcher ended this rank."""


class RankConnection:
    """Sends a rank's events and messages to rank 0, which answers all ranks."""

    def __init__(
        self, network: Network, emit: Emit | None, coordinator: Coordinator | None, folder: Path | None
    ) -> None:
        self._network = network
        self._coordinator = coordinator
        self._folder = folder
        self._events: list[Event] = []
        self._emit = emit
        self.emit: Emit = emit or self._keep

    def _keep(self, event: Event) -> None:
        self._events.append(replace(event, worker=self._network.rank))

    def report(self, message: Message) -> Decision:
        """Send rank 0 the message and the events since the last call, and return its answer."""
        heard = self._network.gather((self._events, message))
        self._events.clear()
        decision = None
        if self._coordinator is not None and self._emit is not None:
            for events, _ in heard[1:]:
                for event in events:
                    self._emit(event)
            decision = self._coordinator.decide([said for _, said in heard])
        answer: Decision = self._network.broadcast(decision)
        if isinstance(message, Saved) and answer.saved and self._folder is not None:
            clear(self._folder, self._network.rank, but=message.epoch)
        return answer


def own_device(name: str, local_rank: int) -> torch.device:
    """Return the device of one rank of a host: its own GPU if there are enough."""
    device = devices.resolve(name)
    if device.type == "cuda" and ":" not in name:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return device


def launch_name(world: World) -> str:
    """Return a name of the launch that stays the same after a restart: the launcher's own, or its process."""
    if world.launch:
        return world.launch
    parent = psutil.Process(os.getppid())
    return f"{parent.pid}-{parent.create_time():.0f}"


def clear(folder: Path, rank: int, but: int | None = None) -> None:
    """Remove a rank's checkpoints, except for the one of an epoch and its predecessor."""
    files = sorted(folder.glob(f"epoch-*-worker-{rank}.pt"), key=checkpoint.epoch_of)
    kept = [path for path in files if but is not None and checkpoint.epoch_of(path) <= but][-2:]
    for path in files:
        if path not in kept:
            with suppress(OSError):
                path.unlink()
    if but is None:
        with suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()


@contextmanager
def ending_by_signal(rank: int) -> Iterator[None]:
    """Convert the signal with which launchers end their ranks into an error, so the end is recorded."""
    if threading.current_thread() is not threading.main_thread() or _ending_by_signal:
        try:
            yield
        except BaseException:
            _ignore_signal_while_recording()
            raise
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        _ignore_signal_while_recording()
        raise EndedByLauncher(
            rank, f"worker {rank} was ended by the launcher: another rank was lost, or the job was cancelled"
        )

    before = signal.signal(signal.SIGTERM, end)
    _ending_by_signal.append(rank)
    try:
        yield
    finally:
        _ending_by_signal.pop()
        signal.signal(signal.SIGTERM, before)


_ending_by_signal: list[int] = []
"""The rank whose outermost block handles SIGTERM, and restores the handler that was there before."""


def _ignore_signal_while_recording() -> None:
    if threading.current_thread() is threading.main_thread() and _ending_by_signal:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# Check that all ranks train the same experiment: each describes its own, and a difference is an error on all ranks.
#
# Every rank runs the user's program itself, on hosts whose files, arguments and packages may differ. Averaging
# different models, or training with settings that rank 0 does not record, would not raise an error by itself.

LONGEST_VALUE = 80
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of packages, of which only the files that define something of the model are compared."""
LARGEST_VALUE = 2**20
"""Bytes of a tensor that is compared."""
MOST_VALUES = 100
"""Items of a list that is compared as one value."""
DEEPEST = 3
"""Functions and objects inside others whose values are compared."""
MOST_NAMED = 8
"""Differences that a message lists."""


def require_same(network: Network, described: Mapping[str, str], remedy: str) -> None:
    """Raise ExperimentError on every rank if descriptions differ; it names the differences and the ranks.

    All ranks call this together. If all are equal, only a digest is sent.
    """
    if differences := find_differences(network, described):
        raise ExperimentError(describe_differences(differences) + f"; {remedy}")


def require_same_values(network: Network, described: Mapping[str, str], remedy: str) -> None:
    """Like `require_same`, but allow values that only identify the rank: its number, or whether it is the first."""
    differences = find_differences(network, described)
    size = len(next(iter(differences.values()), []))
    allowed = [list(map(str, range(size))), *([str(first), *[str(not first)] * (size - 1)] for first in (True, False))]
    if others := {name: values for name, values in differences.items() if values not in allowed}:
        raise ExperimentError(describe_differences(others) + f"; {remedy}")


def find_differences(network: Network, described: Mapping[str, str]) -> dict[str, list[str | None]]:
    """Return the differences between ranks, with the value of each rank; None for a missing value."""
    own = dict(sorted(described.items()))
    digest = hashlib.blake2b(json.dumps(own).encode(), digest_size=16).hexdigest()
    if len(set(map(str, network.all_gather(digest)))) == 1:
        return {}
    everyone = network.all_gather({name: _shortened(value) for name, value in own.items()})
    if not all(
        isinstance(member, dict) and all(isinstance(text, str) for text in member.values()) for member in everyone
    ):
        raise TrainingError(
            "the description of training from another rank cannot be read; install the same version of tenfold on all "
            "hosts"
        )
    names = dict.fromkeys(name for member in everyone for name in member)
    values = {name: [member.get(name) for member in everyone] for name in names}
    return {name: given for name, given in values.items() if len(set(given)) > 1}


def describe_differences(differences: Mapping[str, Sequence[str | None]]) -> str:
    """Return a sentence that names the differences, and the ranks with each value.

    >>> describe_differences({"training.lr": ["0.01", "0.02", "0.01"]})
    'the ranks do not train the same: training.lr is 0.01 on ranks 0 and 2, 0.02 on rank 1'
    """
    clauses = []
    for name, values in list(differences.items())[:MOST_NAMED]:
        ranks: dict[str, list[int]] = {}
        for rank, value in enumerate(values):
            ranks.setdefault("missing" if value is None else _printable(value), []).append(rank)
        given = ", ".join(f"{value} on {_name_ranks(numbers)}" for value, numbers in ranks.items())
        clauses.append(f"{_printable(name)} is {given}")
    if len(differences) > MOST_NAMED:
        clauses.append(f"and {len(differences) - MOST_NAMED} more differ")
    return f"the ranks do not train the same: {'; '.join(clauses)}"


def describe_software() -> dict[str, str]:
    """Return the versions that must be the same on all ranks."""
    return {
        "version of tenfold": __version__,
        "version of torch": torch.__version__.partition("+")[0],  # builds for different devices may work together
        "version of Python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def describe_tensors(network: nn.Module) -> dict[str, str]:
    """Return the type and shape of each parameter and buffer, in the order of the flat weights."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    described = {
        f"model's {name}": f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        + (" (not trained)" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else "")
        for name, tensor in tensors
    }
    return described | {"order of the model's parameters": _digest([name for name, _ in tensors])}


def describe_layers(network: nn.Module) -> dict[str, str]:
    """Return each layer with its settings, as in the printed network."""
    return {
        f"model's layer {name or 'of all'}": re.sub(
            r" at 0x[0-9a-f]+", "", f"{type(layer).__name__}({layer.extra_repr()})"
        )
        for name, layer in network.named_modules()
    }


def describe_sources(objects: Iterable[Any]) -> dict[str, str]:
    """Return a digest of each of the user's source files that defines one of these objects or its class.

    The user's files that these import are included, except imports of a script, which may depend on the rank. The keys
    are module names, because folders may differ between hosts.
    """
    names: list[str] = []
    for value in objects:
        while isinstance(value, partial):
            value = value.func
        kinds = type.mro(value) if isinstance(value, type) else [value, *type(value).__mro__]
        names += [str(getattr(kind, "__module__", "")) for kind in kinds]
    sources: dict[str, str] = {}
    while names:
        name = names.pop()
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if f"source code of {name}" in sources or file is None or not is_users(file) or not Path(file).is_file():
            continue
        with open_regular(Path(file)) as opened:
            content = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
        sources[f"source code of {name}"] = content
        if name != "__main__" and not INSTALLED & set(Path(file).parts):
            names += [_module_of(value) for value in list(vars(module).values())]
    return sources


def describe_methods(network: nn.Module) -> dict[str, str]:
    """Return a digest of each method of the user's own layers, because a script may define them conditionally."""
    kinds = dict.fromkeys(kind for layer in network.modules() for kind in type(layer).__mro__)
    return {
        f"code of {kind.__qualname__}.{name}": _code_digest(member.__code__)
        for kind in kinds
        for name, member in vars(kind).items()
        if isinstance(member, FunctionType) and is_users(member.__code__.co_filename)
    }


def describe_values(objects: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers, texts and tensors in Python objects, by name.

    These are the arguments of partials, the code of the user's functions with the variables and defaults they use, and
    the attributes and buffers of modules and other objects.
    """
    described: dict[str, str] = {}
    for what, value in objects.items():
        with suppress(Exception):  # whatever an object of the user's raises when it is looked at
            described |= {f"{name} of the {what}": text for name, text in _values_of(value, DEEPEST)}
    return described


def describe_attributes(network: nn.Module) -> dict[str, str]:
    """Return the numbers in attributes of the user's layers; rank 0 sends their tensors."""
    described: dict[str, str] = {}
    for path, layer in network.named_modules():
        if is_users(getattr(sys.modules.get(type(layer).__module__), "__file__", None) or "<frozen"):
            numbers = {name: item for name, item in public_values(layer).items() if isinstance(item, int | float)}
            described |= {f"model's {path}.{name}".replace(" .", " "): repr(item) for name, item in numbers.items()}
    return described


def _values_of(value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the name and a description of each value in an object, recursively."""
    held: dict[str, Any] = {}
    if isinstance(value, partial):
        held = {"function": value.func} | {f"argument {place}": item for place, item in enumerate(value.args, 1)}
        held |= value.keywords
    elif isinstance(value, FunctionType):
        held = _variables_of(value)
        if is_users(value.__code__.co_filename):
            yield f"code of {value.__qualname__}", _code_digest(value.__code__)
    elif isinstance(value, MethodType):
        held = {"function": value.__func__} | public_values(value.__self__)
    elif isinstance(value, nn.Module):
        held = dict(value.named_buffers())
        for path, part in value.named_modules():
            held |= {f"{path}.{name}".lstrip("."): item for name, item in public_values(part).items()}
    elif not isinstance(value, type | ModuleType):
        held = public_values(value)
    for name, item in held.items():
        if (text := _value_text(item)) is not None:
            yield name, text
        elif depth:
            yield from _values_of(item, depth - 1)


def _variables_of(function: FunctionType) -> dict[str, Any]:
    """Return the global and closure variables of a user's function, and the defaults of its parameters."""
    code, held = function.__code__, dict[str, Any]()
    if not is_users(code.co_filename):
        return held
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    held |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            held[name] = cell.cell_contents
    return held | {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}


def public_values(value: Any) -> dict[str, Any]:
    """Return an object's public attributes that are numbers or texts."""
    own = getattr(value, "__dict__", {})
    hidden = {"training"} if isinstance(value, nn.Module) else set()
    return {
        name: item
        for name, item in own.items()
        if not name.startswith("_") and name not in hidden and _value_text(item) is not None
    }


def _value_text(value: Any) -> str | None:
    """Return the text by which ranks compare a value, without device indices; None if it is not compared."""
    if isinstance(value, Tensor | np.ndarray):
        if value.nbytes > LARGEST_VALUE or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            return None
        numbers = value.detach().cpu().tolist() if isinstance(value, Tensor) else value.tolist()
        return f"numbers with digest {_digest(numbers)}"
    if isinstance(value, int | float | str):
        return re.sub(r"\b(cuda|xpu):\d+", r"\1", repr(value))
    if isinstance(value, list | tuple) and len(value) <= MOST_VALUES:
        texts = [_value_text(item) for item in value]
        return None if None in texts else f"[{', '.join(map(str, texts))}]"
    return None


def _module_of(value: Any) -> str:
    """Return the name of a module, or of the module that defines an object."""
    with suppress(Exception):  # whatever an object of the user's raises when it is looked at
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        return name if isinstance(name, str) else ""
    return ""


def _code_digest(code: CodeType) -> str:
    """Return a digest of a function's code, independent of its place in a file."""
    constants = [
        _code_digest(item)
        if isinstance(item, CodeType)
        else sorted(map(repr, item))  # the order of a set differs between processes
        if isinstance(item, frozenset)
        else repr(item)
        for item in code.co_consts
    ]
    return _digest((code.co_code, code.co_names, code.co_freevars, constants))


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _shortened(text: str) -> str:
    """Return a value for a sentence; a long one is truncated and ends with a digest of the full value."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 20]}... ({_digest(text)})"


def _printable(text: str) -> str:
    """Return text from the network without control characters."""
    return "".join(word if word.isprintable() else "?" for word in text[: 2 * LONGEST_VALUE])


def _name_ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4:
        return f"{len(ranks)} ranks ({ranks[0]}, {ranks[1]}, ...)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
