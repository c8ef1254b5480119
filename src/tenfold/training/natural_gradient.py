"""SGD along natural gradients of linear layers (Povey, Zhang & Khudanpur 2015, arXiv 1410.7455, "online NG-SGD").

The gradient of a linear layer is G^T X, where the rows of X are the layer's inputs (with a 1 for the bias) and those of
G the derivatives of the loss by its outputs. Its Fisher matrix is approximated by a Kronecker product of two matrices,
one for each side, and both sides are multiplied by the inverse of theirs. For rows X of N samples with D columns:

    F = R^T diag(lambda - rho) R + rho I                  R has `rank` orthonormal rows, lambda and rho are positive
    X' = X (F + alpha tr(F)/D I)^-1                       the Fisher matrix, smoothed by a multiple of the unit matrix
       ~ X - X R^T diag(e) R                              e = (lambda - rho) / (lambda + alpha tr(F)/D)
    X" = X' |X| / |X'|                                    the norm is kept

The gradient is G"^T X". F then learns from this minibatch by one step of the power method, with eta = 1 - exp(-N/S) and
a history of S samples:

    T = eta/N X^T X + (1 - eta) F
    Y = R T = eta/N R X^T X + (1 - eta) diag(lambda) R
    Y Y^T = U C U^T                                       the eigenvalues of a small matrix
    R <- C^-0.5 U^T Y,  lambda <- C^0.5
    rho <- (tr(T) - tr(C^0.5)) / (D - rank)               so that tr(F) is tr(T)

If R has as many rows as columns, F is T, without approximation. In exact arithmetic F is positive definite, because an
update multiplies rho by at least 1 - eta; because of rounding, lambda and rho are kept at least at FLOOR times the
largest.
"""

import copy
import math
import weakref
from collections.abc import Callable
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

FLOOR = 1e-5
"""The smallest eigenvalue of F, relative to the largest."""
SMALLEST = 1e-20
"""The smallest eigenvalue of F where all rows were zero."""
FIRST_UPDATES = 10
"""Minibatches at the beginning, after each of which F is updated."""
START_ITERATIONS, LARGEST_ETA = 3, 0.9
"""F begins with this many updates from the first minibatch, with this eta, which later ones do not exceed, either."""


class Factor(TypedDict):
    """The Fisher matrix F of the rows of one side of a layer."""

    basis: Tensor
    """R: rank x D, with orthonormal rows."""
    eigenvalues: Tensor
    """lambda: the eigenvalues of F for the rows of R."""
    rest: Tensor
    """rho: the eigenvalue of F for everything orthogonal to R."""
    minibatches: int
    """How many minibatches the factor has seen."""


def start_factor(columns: int, rank: int, mean: Tensor) -> Factor:
    """Return a multiple of the unit matrix, with min(rank, columns) orthonormal rows.

    Row i of R has equal entries in the columns i, i + rank, i + 2 rank, ...
    """
    rank = min(rank, columns)
    places = torch.arange(columns, device=mean.device)
    basis = torch.zeros(rank, columns, dtype=mean.dtype, device=mean.device)
    basis[places % rank, places] = 1.0
    basis /= torch.linalg.vector_norm(basis, dim=1, keepdim=True)
    mean = mean.clamp(min=SMALLEST)
    return {"basis": basis, "eigenvalues": mean.repeat(rank), "rest": mean, "minibatches": 0}


def trace(factor: Factor) -> Tensor:
    """Return tr(F)."""
    rank, columns = factor["basis"].shape
    return factor["eigenvalues"].sum() + (columns - rank) * factor["rest"]


def update(factor: Factor, projected_scatter: Tensor, mean_square: Tensor, eta: float) -> Factor:
    """Return the factor after one step of the power method.

    `projected_scatter` is R X^T X / N and `mean_square` tr(X^T X) / N of a minibatch X. It is computed in double
    precision, because the eigenvalues of Y Y^T are squares of those of F.
    """
    basis = factor["basis"]
    rank, columns = basis.shape
    kind = torch.float64 if basis.device.type != "mps" else torch.float32
    kept = (1 - eta) * factor["eigenvalues"].to(kind)
    y = torch.addcmul(eta * projected_scatter.to(kind), kept[:, None], basis.to(kind))
    squares, vectors = torch.linalg.eigh(y @ y.T)
    deviations = squares.clamp_(min=0).sqrt_().flip(0)
    eigenvalues = deviations.clamp(min=SMALLEST).maximum(FLOOR * deviations[0])
    rows = (vectors.flip(1) / eigenvalues).T @ y
    if bool((deviations < eigenvalues).any()):  # rows of tiny eigenvalues are neither of length 1 nor orthogonal
        rows = torch.linalg.qr(rows.T).Q.T
    total = eta * mean_square.to(kind) + (1 - eta) * trace(factor).to(kind)
    rest = (total - eigenvalues.sum()) / (columns - rank) if rank < columns else eigenvalues[-1]
    rest = rest.clamp(min=SMALLEST).maximum(FLOOR * eigenvalues[0])
    return {
        "basis": rows.to(basis.dtype),
        "eigenvalues": eigenvalues.to(basis.dtype),
        "rest": rest.to(basis.dtype),
        "minibatches": factor["minibatches"],
    }


class Rows:
    """The rows of one side of a layer in one minibatch; `with_one` adds a column of ones, for the bias."""

    def __init__(self, rows: Tensor, *, with_one: bool) -> None:
        self.rows, self.with_one = rows, with_one
        self.columns = rows.shape[1] + with_one
        self.square = torch.linalg.vector_norm(rows).square() + with_one * len(rows)

    def precondition(self, factor: Factor, alpha: float) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return X" without the factor |X| / |X'|, its column for the bias, and the factor."""
        basis, eigenvalues = factor["basis"], factor["eigenvalues"]
        smoothing = alpha / self.columns * trace(factor)
        shares = (eigenvalues - factor["rest"]) / (eigenvalues + smoothing)
        scaled = self._project(basis) * shares
        rows = torch.addmm(self.rows, scaled, self._without_one(basis), alpha=-1)
        square = torch.linalg.vector_norm(rows).square()
        ones = None
        if self.with_one:
            ones = 1 - scaled @ basis[:, -1]
            square = square + ones.square().sum()
        return rows, ones, torch.where(square > 0, self.square / square, 1.0).sqrt()

    def learn(self, factor: Factor, eta: float) -> Factor:
        """Return the factor after an update from these rows; unchanged if they contain NaN or infinity."""
        if not bool(self.square.isfinite()):
            return factor
        projected = self._project(factor["basis"])
        scatter = projected.T @ self.rows
        if self.with_one:
            scatter = torch.cat([scatter, projected.sum(0)[:, None]], dim=1)
        return update(factor, scatter / len(self.rows), self.square / len(self.rows), eta)

    def start(self, rank: int) -> Factor:
        """Return the initial factor for the first minibatch of a layer."""
        mean = self.square / (self.columns * len(self.rows))
        factor = start_factor(self.columns, rank, mean if bool(mean.isfinite()) else torch.ones_like(mean))
        for _ in range(START_ITERATIONS):
            factor = self.learn(factor, LARGEST_ETA)
        return factor

    def _project(self, basis: Tensor) -> Tensor:
        projected = self.rows @ self._without_one(basis).T
        return projected.add_(basis[:, -1]) if self.with_one else projected

    def _without_one(self, basis: Tensor) -> Tensor:
        return basis[:, :-1] if self.with_one else basis


class NaturalGradientSGD(torch.optim.SGD):
    """SGD with momentum and natural gradients of linear layers; the formulas are at the top of this file.

    The gradients are preconditioned in the backward pass, where the rows of both sides are known: while this optimizer
    exists, each nn.Linear of the network has a `forward` whose backward pass computes them. Gradients may be clipped,
    accumulated or averaged as usual, and all other parameters have ordinary gradients. If two optimizers are created
    for the same network, the later one preconditions.

    F is updated after each of the first 10 minibatches, later after every `update_every`-th. `history` is the number of
    samples S after which the weight of an old minibatch has fallen to 1/e. Each replica has its own F, and only weights
    are averaged, as in the paper.
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float = 0.05,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        rank: int = 40,
        alpha: float = 4.0,
        update_every: int = 4,
        history: float = 2000.0,
        fused: bool | None = None,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise TypeError("pass the network, not its parameters: the natural gradient needs the inputs of its layers")
        for name, number in {"rank": rank, "update_every": update_every}.items():
            if not (isinstance(number, int) and number >= 1):
                raise ValueError(f"{name} must be a whole number from 1, not {number}")
        for name, value in {"alpha": alpha, "history": history}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, not {value}")
        layers = [layer for layer in network.modules() if _is_linear(layer)]
        if not layers:
            raise ValueError(
                "the network has no trainable nn.Linear, the only layer with a natural gradient here; use sgd"
            )
        super().__init__(network.parameters(), lr, momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused)
        self.layers = layers
        self.rank, self.alpha, self.update_every, self.history = rank, alpha, update_every, history
        for layer in layers:
            _attach(layer, self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, with the layers: a copy with its network preconditions that network."""
        own = ("layers", "rank", "alpha", "update_every", "history")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a saved or copied state, and take over layers that no other existing optimizer preconditions."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for layer in state.get("layers", ()):
            forward = layer.__dict__.get("forward")
            if not isinstance(forward, NaturalForward) or forward.optimizer() is None:
                _attach(layer, self)

    def precondition(self, weight: Tensor, inputs: Rows, outputs: Rows) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weight and bias, and let both factors learn from this minibatch."""
        x, ones, x_scale = self._precondition_side(weight, "inputs", inputs)
        g, _, g_scale = self._precondition_side(weight, "outputs", outputs)
        g.mul_(x_scale * g_scale)
        return g.T @ x, None if ones is None else g.T @ ones

    def _precondition_side(self, weight: Tensor, name: str, rows: Rows) -> tuple[Tensor, Tensor | None, Tensor]:
        factors = self.state[weight]
        if name not in factors:
            factors[name] = rows.start(self.rank)
        factor = factors[name]
        preconditioned = rows.precondition(factor, self.alpha)
        seen = factor["minibatches"] + 1
        if seen <= FIRST_UPDATES or seen % self.update_every == 0:
            factor = rows.learn(factor, min(LARGEST_ETA, 1 - math.exp(-len(rows.rows) / self.history)))
        factors[name] = factor | {"minibatches": seen}
        return preconditioned


class NaturalForward:
    """The `forward` of an nn.Linear whose gradients an optimizer preconditions; without an optimizer, the usual one.

    Copies of a layer have no optimizer until one is created for them or copied with them.
    """

    def __init__(self, layer: nn.Linear, optimizer: NaturalGradientSGD | None = None) -> None:
        self.layer = layer
        self.optimizer: Callable[[], NaturalGradientSGD | None] = lambda: None
        if optimizer is not None:
            self.optimizer = weakref.ref(optimizer)

    def __call__(self, x: Tensor) -> Tensor:
        layer, optimizer = self.layer, self.optimizer()
        if optimizer is None or not (torch.is_grad_enabled() and layer.weight.requires_grad) or not x.numel():
            return functional.linear(x, layer.weight, layer.bias)
        return cast("Tensor", NaturalLinear.apply(x, layer.weight, layer.bias, optimizer))  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> "NaturalForward":
        return NaturalForward(copy.deepcopy(self.layer, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return NaturalForward, (self.layer,)


class NaturalLinear(torch.autograd.Function):
    """x W^T + b, with preconditioned gradients of W and b; the gradient of x is the usual one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, optimizer: NaturalGradientSGD) -> Tensor:
        """Return the outputs, and save tensors for the backward pass."""
        ctx.save_for_backward(x, weight, bias)
        ctx.optimizer = optimizer
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        x_gradient = (gradient @ weight.to(gradient.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        inputs = Rows(_flat(x, weight), with_one=bias is not None and bias.requires_grad)
        outputs = Rows(_flat(gradient, weight), with_one=False)
        return x_gradient, *ctx.optimizer.precondition(weight, inputs, outputs), None


def _flat(tensor: Tensor, weight: Tensor) -> Tensor:
    return tensor.detach().reshape(-1, tensor.shape[-1]).to(weight.dtype)


def _is_linear(layer: nn.Module) -> bool:
    """Return whether a layer computes the same as nn.Linear, and is trained."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and layer.weight.requires_grad


def _attach(layer: nn.Module, optimizer: NaturalGradientSGD) -> None:
    layer.__dict__["forward"] = NaturalForward(cast("nn.Linear", layer), optimizer)
