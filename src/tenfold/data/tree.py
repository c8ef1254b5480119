"""Tensors in tuples, lists and dicts, as networks take and return them (what JAX and torch call a pytree)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import ModelError

MAIN_OUTPUTS = ("logits", "output", "outputs", "prediction", "predictions")
"""Names of the main output, if a network has several, in the order in which they are looked for."""


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf; tuples and lists become tuples, mappings become dicts."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: tree_map(function, item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(tree_map(function, item) for item in tree)
    return function(tree)


def tree_leaves(tree: Any) -> list[Any]:
    """Return all leaves, in order."""
    if isinstance(tree, Mapping):
        return [leaf for item in tree.values() for leaf in tree_leaves(item)]
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in tree_leaves(item)]
    return [tree]


def tree_combine(function: Callable[[list[Any]], Any], trees: Sequence[Any]) -> Any:
    """Apply a function to the leaves that several trees of the same form have in the same place."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: tree_combine(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(tree_combine(function, list(items)) for items in zip(*trees, strict=True))
    return function(list(trees))


def tree_concatenate(trees: Sequence[Any]) -> Any:
    """Join trees of tensors along the samples."""
    return tree_combine(torch.cat, trees)


def select_rows(tree: Any, rows: Tensor) -> Any:
    """Return these rows of every tensor."""
    return tree_map(lambda tensor: tensor.index_select(0, rows), tree)


def shape_of(tree: Any) -> Any:
    """Return the shape of a tensor, or the shapes of a tuple or dict of tensors in the same form."""
    return tree_map(lambda tensor: tuple(tensor.shape), tree)


def shape_from_record(recorded: Any) -> Any:
    """Return the shape or shapes that were stored as JSON, whose lists stand for tuples."""
    if isinstance(recorded, dict):
        return {key: shape_from_record(shape) for key, shape in recorded.items()}
    return tuple(shape_from_record(item) if isinstance(item, list) else item for item in recorded)


def describe_shape(shape: Any) -> str:
    """Return a shape as text, "1x28x28", or several: "a 3, b 5x2"."""
    if isinstance(shape, dict):
        return ", ".join(f"{key} {describe_shape(one)}" for key, one in shape.items())
    if has_several(shape):
        return ", ".join(map(describe_shape, shape))
    return "x".join(map(str, shape)) or "1"


def has_several(shape: Any) -> bool:
    """Return whether these are the shapes of several tensors."""
    return isinstance(shape, dict) or any(not isinstance(length, int) for length in shape)


def find_main_output(outputs: Any) -> Tensor | None:
    """Return the one tensor among several outputs that is compared with the targets, or None if there is none."""
    if isinstance(outputs, Tensor):
        return outputs
    for key in MAIN_OUTPUTS if isinstance(outputs, dict) else ():
        if isinstance(outputs.get(key), Tensor):
            return outputs[key]  # type: ignore[no-any-return]
    others = {key: one for key, one in outputs.items() if key != "loss"} if isinstance(outputs, dict) else outputs
    tensors = [leaf for leaf in tree_leaves(others) if leaf.ndim]
    return tensors[0] if len(tensors) == 1 else None


def main_output(outputs: Any, name: str) -> Tensor:
    """Return the main output for a built-in loss or metric; `name` names it in errors."""
    found = find_main_output(outputs)
    if found is not None:
        return found
    kind = f"a dict ({', '.join(outputs)})" if isinstance(outputs, dict) else f"a tuple of {len(outputs)}"
    raise ModelError(
        f"the network returns {kind}, and {name} needs one tensor; return one, call it 'logits' in a dict, or give a "
        "function of your own: f(outputs, targets)"
    )
