"""Whether all ranks of a launcher train the same: each describes what it has, and a difference is an error on all.

Every rank runs the user's program itself, on hosts that may have other files, arguments and packages. Averaging
different models, or training with settings that only rank 0 records, would not fail by itself.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tenfold.common import __version__
from tenfold.common.files import open_regular
from tenfold.common.imports import is_users
from tenfold.errors import ExperimentError, TrainingError
from tenfold.transport import Network

LONGEST_VALUE = 80
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of packages, of which only the files that define something of the model are compared."""
MOST_NAMED = 8
"""Differences that a message lists."""


def require_same(network: Network, described: Mapping[str, str], remedy: str) -> None:
    """Raise ExperimentError on every rank if any has another description; it names what differs, and the ranks.

    All ranks call this together. Only a digest is sent where all are the same.
    """
    if differences := find_differences(network, described):
        raise ExperimentError(describe_differences(differences) + f"; {remedy}")


def find_differences(network: Network, described: Mapping[str, str]) -> dict[str, list[str | None]]:
    """Return what is not the same on all ranks, with the value of each rank; None stands for a missing one."""
    own = dict(sorted(described.items()))
    digest = hashlib.blake2b(json.dumps(own).encode(), digest_size=16).hexdigest()
    if len(set(map(str, network.all_gather(digest)))) == 1:
        return {}
    everyone = network.all_gather({name: _shortened(value) for name, value in own.items()})
    if not all(
        isinstance(member, dict) and all(isinstance(text, str) for text in member.values()) for member in everyone
    ):
        raise TrainingError("a rank describes its training in a form that cannot be read; update tenfold on all hosts")
    names = dict.fromkeys(name for member in everyone for name in member)
    values = {name: [member.get(name) for member in everyone] for name in names}
    return {name: given for name, given in values.items() if len(set(given)) > 1}


def describe_differences(differences: Mapping[str, Sequence[str | None]]) -> str:
    """Return a sentence that names what differs, and the ranks that have each value.

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
    """Return the versions that have to be the same on all ranks."""
    return {
        "version of tenfold": __version__,
        "version of torch": torch.__version__.partition("+")[0],  # builds for different devices may work together
        "version of Python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def describe_tensors(network: nn.Module) -> dict[str, str]:
    """Return the type and shape of each parameter and buffer, in their order, which is that of the flat weights."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    described = {
        f"model's {name}": f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        + (" (not trained)" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else "")
        for name, tensor in tensors
    }
    return described | {"order of the model's parameters": _digest([name for name, _ in tensors])}


def describe_layers(network: nn.Module) -> dict[str, str]:
    """Return each layer with its settings, as printing the network shows them."""
    return {
        f"model's layer {name or 'of all'}": re.sub(
            r" at 0x[0-9a-f]+", "", f"{type(layer).__name__}({layer.extra_repr()})"
        )
        for name, layer in network.named_modules()
    }


def describe_sources(objects: Iterable[Any]) -> dict[str, str]:
    """Return a digest of each source file of the user's that defines one of these objects or its class.

    Files of the user's that these import are included, too, except those that a script imports: that may depend on the
    rank. Files are named by their modules: hosts may keep them in different folders.
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


def _module_of(value: Any) -> str:
    """Return the name of a module, or of the module that defines an object."""
    with suppress(Exception):  # whatever an object of the user's raises when it is looked at
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        return name if isinstance(name, str) else ""
    return ""


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _shortened(text: str) -> str:
    """Return a value as a sentence shows it; what is too long ends with a digest of all of it."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 20]}... ({_digest(text)})"


def _printable(text: str) -> str:
    """Return text that came over a network without what a terminal would act on."""
    return "".join(word if word.isprintable() else "?" for word in text[: 2 * LONGEST_VALUE])


def _name_ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4:
        return f"{len(ranks)} ranks ({ranks[0]}, {ranks[1]}, ...)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
