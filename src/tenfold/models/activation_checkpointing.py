"""Activation checkpointing: recompute activations in the backward pass instead of keeping them in memory."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tenfold.errors import ModelError
from tenfold.registry import suggest

LISTS = (nn.ModuleList, nn.ModuleDict)
"""Containers that cannot be called; naming one means its members."""


def checkpoint_activations(network: nn.Module, chosen: bool | Sequence[str]) -> None:
    """Let blocks of the network keep only their inputs, and compute their activations again in the backward pass.

    `chosen` names the blocks, or is True for those that `find_blocks` finds. The weights of the network and their
    names stay the same, and so do its gradients.
    """
    for block in find_blocks(network) if isinstance(chosen, bool) else _named_blocks(network, chosen):
        kind: Any = type(block)
        block.__class__ = _recomputing(kind)


def find_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the members of nn.Sequential and nn.ModuleList that consist of several layers; of nested ones, the outer.

    A single layer is not a block: it keeps little more than its input, which has to be kept anyway.
    """
    blocks = list(dict.fromkeys(_blocks(network)))  # one may be used in several places
    if not blocks:
        named = [name for name, module in network.named_modules() if name and _has_layers(module)]
        example = f'["{named[0]}"]' if named else "a list of the modules' names"
        raise ModelError(
            "training.activation_checkpointing = true needs blocks of several layers in an nn.Sequential or "
            f"nn.ModuleList, but this network has none; name the modules: {example}"
        )
    return blocks


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    listed = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    for child in module.children():
        if listed and _has_layers(child) and not isinstance(child, LISTS):
            yield child
        else:
            yield from _blocks(child)


def _has_layers(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _named_blocks(network: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    modules = {name: module for name, module in network.named_modules() if name}
    blocks: dict[str, nn.Module] = {}
    for pattern in patterns:
        names = [name for name in modules if fnmatchcase(name, pattern)]
        if not names:
            raise ModelError(
                f"training.activation_checkpointing: the network has no module '{pattern}'; {suggest(pattern, modules)}"
            )
        for name in names:
            if isinstance(modules[name], LISTS):
                blocks |= {f"{name}.{key}": child for key, child in modules[name].named_children()}
            else:
                blocks[name] = modules[name]
    inside = {name for name in blocks if any(name.startswith(f"{other}.") for other in blocks)}
    return [module for name, module in blocks.items() if name not in inside]


@cache
def _recomputing(kind: Any) -> type[nn.Module]:
    """Return a subclass that differs only in the tensors that it saves for the backward pass."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = partial(kind.forward, self)
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, context_fn=partial(_contexts, self), **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the forward pass and of its repetition, which must find and leave all buffers as they are.

    The running statistics of batch normalization would otherwise be updated twice.
    """
    before = [
        (module, name, buffer.detach().clone())
        for module in block.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    return nullcontext(), _OtherBuffers(before)


class _OtherBuffers(AbstractContextManager[None]):
    """While it is entered, modules have copies of other values in place of their buffers; it may be entered again."""

    def __init__(self, values: list[tuple[nn.Module, str, Tensor]]) -> None:
        self.values = values
        self._own: list[Tensor] = []

    def __enter__(self) -> None:
        self._own = [getattr(module, name) for module, name, _ in self.values]
        for module, name, value in self.values:
            setattr(module, name, value.clone())

    def __exit__(self, *_: object) -> None:
        for (module, name, _value), own in zip(self.values, self._own, strict=True):
            setattr(module, name, own)
