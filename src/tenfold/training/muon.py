"""The Muon optimizer: momentum whose matrices are orthogonalized by Newton-Schulz iteration."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adam import adam
from torch.optim.sgd import sgd

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of K. Jordan (2024): they bring small singular values close to 1 in few steps, though not exactly to 1."""
SMALLEST_NORM = 1e-7
SMALL = 32
"""Gram matrices up to this size are padded to one size and iterated together: starting an operation costs more."""


def gram(z: Tensor) -> Tensor:
    """Return Z Z^T of each matrix of a batch, or Z^T Z if that is smaller."""
    return torch.bmm(z, z.mT) if z.shape[-2] <= z.shape[-1] else torch.bmm(z.mT, z)


def factors(grams: Sequence[Tensor], steps: int, small: int = 0) -> list[Tensor]:
    """Return the results of `factor` for several batches of Gram matrices.

    Matrices of the same size are iterated together. Matrices smaller than `small` are padded with rows and columns of
    zeros, which remain zeros, to be iterated together, too.
    """
    sizes = [gram.shape[-1] for gram in grams]
    small = max([small, *(size for size in sizes if size <= SMALL)])
    members: dict[int, list[int]] = {}
    for place, size in enumerate(sizes):
        members.setdefault(small if size <= SMALL else size, []).append(place)
    results: list[Tensor] = list(grams)
    for size, places in members.items():
        if len(places) == 1 and sizes[places[0]] == size:
            results[places[0]] = factor(grams[places[0]], steps)
            continue
        together = factor(torch.cat([_pad(grams[place], size) for place in places]), steps)
        for place, item in zip(places, torch.split(together, [len(grams[place]) for place in places]), strict=True):
            results[place] = item[:, : sizes[place], : sizes[place]] if sizes[place] < size else item
    return results


def factor(grams: Tensor, steps: int) -> Tensor:
    """Return Q such that Q Z is the result of `steps` Newton-Schulz steps on Z, for each G = Z Z^T of a batch.

    One step is X <- P X with P = a I + b A + c A^2 and A = X X^T, beginning with X = Z / |Z|. All P are polynomials of
    one symmetric matrix, so they are symmetric and commute: A becomes P A P, and Q = P_k ... P_1 / |Z|. Only the small
    Gram matrix is iterated, and |Z|^2 is its trace.
    """
    a, b, c = COEFFICIENTS
    square = grams.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_(min=SMALLEST_NORM**2)[:, None, None]
    state = grams / square
    product = state
    for step in range(steps):
        polynomial = torch.baddbmm(state, state, state, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if step == 0 else torch.bmm(polynomial, product)
        if step < steps - 1:
            state = torch.bmm(torch.bmm(polynomial, state), polynomial)
    return product * square.rsqrt()


def apply(w: Tensor, q: Tensor, z: Tensor, alpha: float) -> None:
    """Add alpha Q Z to each matrix of a batch, or alpha Z Q if Q belongs to Z^T Z."""
    if z.shape[-2] <= z.shape[-1]:
        w.baddbmm_(q, z, alpha=alpha)
    else:
        w.baddbmm_(z, q, alpha=alpha)


def _pad(grams: Tensor, size: int) -> Tensor:
    missing = size - grams.shape[-1]
    return functional.pad(grams, (0, missing, 0, missing)) if missing else grams


Shape = tuple[int, int, int]
"""A parameter as a stack of matrices: how many, rows, columns."""
BLOCK = 64
"""Rows of a matrix that are orthogonalized together: with all of 512, a step would take ten times as long."""
PARTNER_RATES = {"sgd": 0.05, "adamw": 0.001}
"""The partners, with their usual learning rates."""
EMBEDDING_RATIO = 0.5
"""The usual learning rate of embeddings in units of Muon's."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for embeddings, and a partner (sgd or adamw) for all other parameters.

    With gradient G and momentum B of a matrix W of r rows and c columns:

        B <- mu B + (1 - mu) G
        Z  = mu B + (1 - mu) G  (nesterov), else B
        W <- (1 - lr weight_decay) W - lr max(1, r/c)^0.5 NS(Z)

    NS(Z) is the result of `steps` Newton-Schulz steps on Z: approximately U V^T for Z = U S V^T. A matrix with more
    than `block` rows and columns is divided into equal matrices of about `block` rows; it is not divided if no number
    from block/2 to 4 block divides its rows, for example if that is a prime. If the network is given, convolutions are
    matrices with a row per output channel, other stacks are taken apart, and embeddings are recognized, even if an
    output layer shares their weights; if parameters are given, all with two or more dimensions are matrices.

    Most rows of an embedding have no gradient in a step, and orthogonalizing would move all of them. AdamW updates
    embeddings with the learning rate `embedding_lr`, by default lr / 2; with `embeddings = "partner"` the partner
    updates them. `output` is the rule ("muon" or "partner") for the last matrix of the network. All groups keep
    `lr_ratio`, their learning rate in units of Muon's, for schedules that set all learning rates together.
    """

    def __init__(
        self,
        parameters: nn.Module | Iterable[nn.Parameter],
        lr: float = 0.01,
        *,
        momentum: float = 0.9,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        steps: int = 3,
        partner: str = "sgd",
        partner_lr: float | None = None,
        embeddings: str = "adamw",
        embedding_lr: float | None = None,
        output: str = "muon",
        block: int = BLOCK,
    ) -> None:
        rates = {"lr": lr, "partner_lr": partner_lr, "embedding_lr": embedding_lr}
        wrong = [name for name, rate in rates.items() if not (rate is None or rate > 0)]
        for holds, requirement in (
            (not wrong, f"learning rates must be positive, not those of {', '.join(wrong)}"),
            (0 <= momentum < 1, f"momentum must be at least 0 and less than 1, not {momentum}"),
            (isinstance(steps, int) and 1 <= steps <= 10, f"steps must be a whole number from 1 to 10, not {steps}"),
            (partner in PARTNER_RATES, f"partner must be {' or '.join(PARTNER_RATES)}, not {partner!r}"),
            (embeddings in ("adamw", "partner"), f"embeddings must be adamw or partner, not {embeddings!r}"),
            (output in ("muon", "partner"), f"output must be muon or partner, not {output!r}"),
            (isinstance(block, int) and block >= 1, f"block must be a whole number of rows from 1, not {block}"),
        ):
            if not holds:
                raise ValueError(requirement)
        if not isinstance(parameters, nn.Module):
            parameters = list(parameters)
        whole = getattr(parameters, "whole_network", None)
        shapes = find_matrices(whole or parameters, output=output, block=block)
        grams = [min(shape[1:]) for shape in shapes.values()]
        self.small_gram = max((size for size in grams if size <= SMALL), default=0)
        """The size of small Gram matrices, the same in all stages of a network."""
        if whole is not None and isinstance(parameters, nn.Module):  # a stage has only some of its matrices
            named = {name: shapes[parameter] for name, parameter in whole.named_parameters() if parameter in shapes}
            own = parameters.named_parameters()
            shapes = {parameter: named[name] for name, parameter in own if name in named}
        embedded = find_embeddings(parameters) if embeddings == "adamw" else set()
        everything = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
        matrices = [parameter for parameter in everything if parameter in shapes]
        tables = [parameter for parameter in everything if parameter in embedded]
        others = [parameter for parameter in everything if parameter not in shapes and parameter not in embedded]
        ratio = (PARTNER_RATES[partner] if partner_lr is None else partner_lr) / lr
        table_ratio = EMBEDDING_RATIO if embedding_lr is None else embedding_lr / lr
        groups: list[dict[str, Any]] = [
            {
                "params": matrices,
                "rule": "muon",
                "shapes": [shapes[parameter] for parameter in matrices],
                "steps": steps,
            },
            {"params": tables, "rule": "adamw", "lr": lr * table_ratio, "lr_ratio": table_ratio, "is_embedding": True},
            {"params": others, "rule": partner, "lr": lr * ratio, "lr_ratio": ratio},
        ]
        defaults = {"lr": lr, "lr_ratio": 1.0, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        if not everything:
            raise ValueError("optimizer got an empty parameter list")
        super().__init__([group for group in groups if group["params"]], defaults)
        self.own: dict[Tensor, slice] = {}
        """Which matrices of a parameter's stack a step changes; of parameters that are not in it, all."""
        modules = parameters.modules() if isinstance(parameters, nn.Module) else ()
        layers: list[Any] = [module for module in modules if hasattr(module, "gather_rows")]
        self.divided: dict[Tensor, Any] = {layer.weight: layer for layer in layers}
        """By their weights, the layers of which this worker has some rows (`divided_layers.py`)."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a saved or copied state, but keep the current division of matrices; the saved one may differ."""
        shapes = [group.get("shapes") for group in self.__dict__.get("param_groups", ())]
        super().__setstate__(state)
        self.__dict__.setdefault("own", {})
        self.__dict__.setdefault("divided", {})
        self.__dict__.setdefault("small_gram", 0)
        for group, own in zip(self.param_groups, shapes, strict=False):  # a copy has no shapes yet
            if own is not None:
                group["shapes"] = own

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            {"muon": self._muon, "sgd": self._sgd, "adamw": self._adamw}[group["rule"]](group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        learned = [
            (parameter, shape)
            for parameter, shape in zip(group["params"], group["shapes"], strict=True)
            if parameter.grad is not None
        ]
        if not learned:
            return
        parameters = [parameter for parameter, _ in learned]
        gradients = [_like(parameter.grad, parameter) for parameter in parameters]
        buffers = self._states(parameters, "momentum_buffer")
        lr, momentum = group["lr"], group["momentum"]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        momenta = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        divided = [(place, self.divided[item]) for place, item in enumerate(parameters) if item in self.divided]
        targets: list[Tensor] = list(parameters)
        if divided:  # whole matrices are orthogonalized, and each worker takes its own rows of the result
            momenta = list(momenta)
            for place, layer in divided:
                momenta[place] = layer.gather_rows(momenta[place])
                targets[place] = torch.zeros_like(momenta[place])
                parameters[place].mul_(1 - lr * group["weight_decay"])
        weights = [self._own(parameter, item, shape) for (parameter, shape), item in zip(learned, targets, strict=True)]
        updates = [self._own(parameter, item, shape) for (parameter, shape), item in zip(learned, momenta, strict=True)]
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        products = factors([gram(update) for update in updates], group["steps"], self.small_gram)
        for w, q, z, (_, shape) in zip(weights, products, updates, learned, strict=True):
            apply(w, q, z, -lr * shape_scale(shape))
        for place, layer in divided:
            parameters[place].add_(layer.own_rows(targets[place]))

    def _sgd(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if parameters:
            sgd(
                parameters,
                [parameter.grad for parameter in parameters],
                list(self._states(parameters, "momentum_buffer")),
                fused=_fusible(parameters),
                lr=group["lr"],
                momentum=group["momentum"],
                dampening=0,
                nesterov=group["nesterov"] and group["momentum"] > 0,
                weight_decay=group["weight_decay"],
                maximize=False,
            )

    def _adamw(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)
        adam(
            parameters,
            [parameter.grad for parameter in parameters],
            self._states(parameters, "exp_avg"),
            self._states(parameters, "exp_avg_sq"),
            [],
            [self.state[parameter]["step"] for parameter in parameters],
            fused=_fusible(parameters),
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )

    def _own(self, parameter: Tensor, tensor: Tensor, shape: Shape) -> Tensor:
        """Return a tensor of the parameter's shape as the matrices that a step uses."""
        matrices = as_matrices(tensor, shape)
        return matrices[self.own[parameter]] if parameter in self.own else matrices

    def _states(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]


def find_matrices(
    parameters: nn.Module | Iterable[nn.Parameter], *, output: str = "muon", block: int = BLOCK
) -> dict[Tensor, Shape]:
    """Return the parameters for Muon, each with its shape as a stack of matrices of about `block` rows."""
    if not isinstance(parameters, nn.Module):
        parameters = nn.ParameterList(parameters)
    matrices: dict[Tensor, Shape] = {}
    for module in parameters.modules():
        for name, parameter in module.named_parameters(recurse=False):
            shape = _stack_shape(module, name, parameter)
            if shape is not None:
                matrices[parameter] = shape
    left_out = find_embeddings(parameters)
    if output == "partner" and matrices:
        left_out.add(list(matrices)[-1])
    return {parameter: _in_blocks(shape, block) for parameter, shape in matrices.items() if parameter not in left_out}


def find_embeddings(parameters: nn.Module | Iterable[nn.Parameter]) -> set[Tensor]:
    """Return the weights of a network's embeddings, including shared ones; none if only parameters are given."""
    modules = parameters.modules() if isinstance(parameters, nn.Module) else ()
    return {module.weight for module in modules if isinstance(module, nn.Embedding | nn.EmbeddingBag)}


def _stack_shape(module: nn.Module, name: str, parameter: Tensor) -> Shape | None:
    if parameter.ndim < 2 or not parameter.is_floating_point():
        return None
    size = getattr(module, "whole_shape", parameter.shape)
    if isinstance(module, nn.MultiheadAttention) and name == "in_proj_weight":  # queries, keys and values
        shape = 3, size[0] // 3, size[1]
    elif parameter.ndim == 2 or isinstance(module, nn.modules.conv._ConvNd | nn.ParameterList):
        shape = 1, size[0], math.prod(size[1:])
    else:
        shape = math.prod(size[:-2]), size[-2], size[-1]
    return shape if min(shape[1:]) > 1 else None


def _in_blocks(shape: Shape, block: int) -> Shape:
    """Divide matrices that are large in both dimensions into equal ones of about `block` rows, if possible.

    Blocks of a few rows are useless: orthogonalizing them does little more than scale each row to the same length.
    """
    count, rows, columns = shape
    if min(rows, columns) <= block:
        return shape
    sizes = [size for size in range(math.ceil(block / 2), min(4 * block, rows) + 1) if rows % size == 0]
    size = min(sizes, key=lambda size: abs(math.log(size / block)), default=rows)
    return count * (rows // size), size, columns


def as_matrices(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a view of a tensor as a stack of matrices, with columns in memory order."""
    if tensor.ndim == 4 and not tensor.is_contiguous():
        tensor = tensor.permute(0, 2, 3, 1)  # channels last
    return tensor.view(shape)


def shape_scale(shape: Shape) -> float:
    """Return the factor max(1, rows/columns)^0.5, which lets tall matrices take steps as large as wide ones."""
    _, rows, columns = shape
    return math.sqrt(max(1.0, rows / columns))


def _like(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return a gradient in the memory layout of its parameter."""
    assert gradient is not None
    same = gradient.stride() == parameter.stride() or (gradient.is_contiguous() and parameter.is_contiguous())
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


def _fusible(parameters: list[Tensor]) -> bool:
    return all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
