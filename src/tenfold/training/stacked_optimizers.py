"""Optimizers and gradients of many stacked replicas, one per row."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tenfold.common.optimizer_defaults import OPTIMIZER_TRAITS
from tenfold.data.part import find_main_output, tree_leaves, tree_map
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.registry import Registry
from tenfold.training.flat_weights import padded_size
from tenfold.training.measures import Measure
from tenfold.training.muon import Muon, Shape, factors, gram, shape_scale
from tenfold.training.network_call import arguments_of, autocast, call_network, plain_outputs
from tenfold.training.optimizers import make_optimizer

if TYPE_CHECKING:
    from tenfold.training.stack import Stack

STREAMS = 16
"""How many branches of a CUDA graph may run at the same time."""


Keep = Callable[[int, Any, Tensor], None]


class GradientMethod(ABC):
    """Computes a matrix of gradients, one row per replica."""

    def __init__(self, stack: "Stack", loss: Measure, gradient: Tensor, precision: str) -> None:
        self.stack = stack
        self.loss = loss
        self.views = stack.gradient_views(gradient)
        self.precision = precision
        self.device_type = gradient.device.type
        self.keep: Keep | None = None
        """Called with the outputs of each row and their targets, where training accuracy is counted."""

    @abstractmethod
    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:
        """Write the gradients of these rows into the matrix, and their losses into `losses`; batch i is for row i."""


class Loop(GradientMethod):
    """Computes one replica after another; on several streams while a CUDA graph is captured.

    On a CPU each replica has its own random generator, and trains exactly as it would alone.
    """

    def __init__(self, stack: "Stack", loss: Measure, gradient: Tensor, precision: str) -> None:
        super().__init__(stack, loss, gradient, precision)
        self.rng_states: list[Tensor] | None = None
        """The state of torch's random generator for each replica."""
        self._tensors: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:

        def job(place: int, row: int) -> Callable[[], None]:
            return lambda: self._one(tree_map(lambda of: of[place], x), y[place], row, losses[place])

        side_by_side([job(place, row) for place, row in enumerate(range(rows.start, rows.stop))], self.device_type)

    def _one(self, x: Any, y: Tensor, row: int, out: Tensor) -> None:
        if row not in self._tensors:
            named = dict(self.stack.network_of(row).named_parameters())
            self._tensors[row] = [named[name] for name in self.stack.names], [view[row] for view in self.views]
        parameters, views = self._tensors[row]
        with _own_generator(self.rng_states, row):
            with autocast(self.precision, self.device_type):
                outputs = self._call(row, x)
                if self.keep is not None:
                    self.keep(row, outputs, y)
                loss = self.loss(outputs, y)
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        torch._foreach_copy_(views, gradients)
        out.copy_(loss.detach())

    def _call(self, row: int, x: Any) -> Any:
        return call_network(self.stack.network_of(row), x)


class Compiled(Loop):
    """Like `Loop`, but with compiled forward and backward passes for the most common batch size."""

    def __init__(self, stack: "Stack", loss: Measure, gradient: Tensor, precision: str) -> None:
        super().__init__(stack, loss, gradient, precision)
        self.size = 0
        """The samples of the batches that are compiled for: each size takes seconds to compile."""
        self._named: dict[int, dict[str, Tensor]] = {}

        def forward(tensors: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
            return functional_call(stack.network, tensors, args, kwargs)

        # torch.compile gives up on a code object after a few networks, so each instance has its own
        forward.__code__ = forward.__code__.replace()
        self._forward = torch.compile(forward, dynamic=False)

    def _call(self, row: int, x: Any) -> Any:
        if len(tree_leaves(x)[0]) != self.size:
            return super()._call(row, x)
        network = self.stack.network_of(row)
        if row not in self._named:
            self._named[row] = dict(network.named_parameters()) | dict(network.named_buffers())
        outputs = self._forward(self._named[row], *arguments_of(network, x))
        return outputs if isinstance(outputs, Tensor) and outputs.ndim else plain_outputs(outputs)


class Vmap(GradientMethod):
    """Computes all replicas together, by torch.func.vmap over their stacked weights.

    Dropout uses one random generator for all. Batch normalization writes its running statistics into the stacked
    buffers.
    """

    def gradients(self, x: Any, y: Tensor, rows: slice, losses: Tensor) -> None:
        stack = self.stack
        views = {name: view[rows] for name, view in stack.views.items()}
        learned = {name: views.pop(name) for name in stack.names}
        # Tensors that are updated in place under vmap must be contiguous; otherwise the update is lost in a copy.
        others = {name: view.contiguous() for name, view in views.items()}
        counters = {name: counter[rows] for name, counter in stack.counters.items()}
        step = vmap(grad_and_value(self._one, has_aux=True), randomness="different")
        by_name, (values, outputs) = step(learned, others | counters, x, y)
        torch._foreach_copy_([view[rows] for view in self.views], [by_name[name] for name in stack.names])
        if views:
            torch._foreach_copy_(list(views.values()), list(others.values()))
        losses.copy_(values)
        if self.keep is not None:
            for place, row in enumerate(range(rows.start, rows.stop)):
                self.keep(row, outputs[place], y[place])

    def _one(self, learned: dict[str, Tensor], others: dict[str, Tensor], x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.precision, self.device_type):
            network = self.stack.network
            args, kwargs = arguments_of(network, x)
            outputs = plain_outputs(functional_call(network, (learned, others), args, kwargs))
            loss = self.loss(outputs, y)
        main = find_main_output(outputs) if self.keep is not None else None
        return loss, loss.detach() if main is None else main


GRADIENT_METHODS: dict[str, type[GradientMethod]] = {"vmap": Vmap, "loop": Loop, "compiled": Compiled}


def side_by_side(jobs: Sequence[Callable[[], None]], device_type: str) -> None:
    """Run the jobs one after another; while a CUDA graph is captured, as parallel branches on several streams."""
    if device_type != "cuda" or len(jobs) == 1 or not torch.cuda.is_current_stream_capturing():
        for job in jobs:
            job()
        return
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(jobs)))]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(main)
    for number, job in enumerate(jobs):
        with torch.cuda.stream(streams[number % len(streams)]):
            job()
    for stream in streams:
        main.wait_stream(stream)


@contextmanager
def _own_generator(states: list[Tensor] | None, row: int) -> Iterator[None]:
    if states is None:
        yield
        return
    torch.set_rng_state(states[row])
    yield
    states[row] = torch.get_rng_state()


# Optimizer steps of many replicas together, on matrices with one replica per row.
#
# The update rules are torch's, but the learning rate is a tensor, and no number is ever read back from the device.

Number = float | Tensor
"""One for all replicas, or a column with one for each."""
Roles = dict[str, Tensor]
"""The state of an optimizer, one matrix for each role, laid out like the weights."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """The update rule of all replicas; t is the number of each replica's step, from 1, as a column."""

    weight_decay: Number = 0.0
    maximize: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of a replica's state vectors."""
        return ()

    def start(self, weights: Tensor) -> Roles:
        """Return the state before the first step."""
        return {role: torch.zeros_like(weights) for role in self.roles}

    @abstractmethod
    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        """Change the columns `learning` of the weights w by the gradients g; g may be overwritten."""


@dataclass(frozen=True, kw_only=True)
class ElementwiseRule(Rule):
    """An elementwise rule: any columns can be updated together."""

    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        for columns in learning:
            own = {role: matrix[:, columns] for role, matrix in roles.items()}
            self.update(w[:, columns], g[:, columns], own, lr, t)

    def update(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None:
        """Change the weights and the state in place; the gradient may be overwritten."""
        if self.maximize:
            g.neg_()
        if _is_used(self.weight_decay):
            self._decay(w, g, lr)
        self._step(w, g, roles, lr, t)

    def _decay(self, w: Tensor, g: Tensor, lr: Tensor) -> None:  # noqa: ARG002
        _add_multiple(g, w, self.weight_decay)

    @abstractmethod
    def _step(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Sgd(ElementwiseRule):
    """b <- mu b + (1 - damp) g, in the first step b <- g; w <- w - lr b, or with Nesterov w - lr (g + mu b)."""

    momentum: Number = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return ("momentum_buffer",) * _is_used(self.momentum)

    def _step(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None:
        if _is_used(self.momentum):
            buffer = roles["momentum_buffer"].mul_(self.momentum)
            if self.dampening:
                share = torch.where(t == 1, 1.0, 1 - self.dampening).to(g.dtype)
                buffer.addcmul_(g, share.expand_as(g))
            else:
                buffer.add_(g)
            g = _add_multiple(g, buffer, self.momentum) if self.nesterov else buffer
        w.addcmul_(g, lr, value=-1)


@dataclass(frozen=True, kw_only=True)
class Adam(ElementwiseRule):
    """m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; w <- w - lr m' / (sqrt(v') + eps), m' = m / (1 - b1^t), v' alike.

    Kingma & Ba 2015; with `amsgrad` v' is the largest so far (Reddi et al. 2018).
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False
    decoupled_weight_decay: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq", *("max_exp_avg_sq",) * self.amsgrad

    def _decay(self, w: Tensor, g: Tensor, lr: Tensor) -> None:
        if self.decoupled_weight_decay:
            w.mul_(1 - lr * self.weight_decay)
        else:
            super()._decay(w, g, lr)

    def _step(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None:
        b1, b2 = self.betas
        mean, square = roles["exp_avg"].lerp_(g, 1 - b1), roles["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2)
        if self.amsgrad:
            square = torch.maximum(roles["max_exp_avg_sq"], square, out=roles["max_exp_avg_sq"])
        size = (lr / (1 - b1**t)).to(w.dtype)  # in double: 1 - b2^t loses most digits of a float
        root = (1 - b2**t).sqrt().to(w.dtype)
        denominator = torch.sqrt(square, out=g).div_(root).add_(self.eps)
        w.sub_(torch.div(mean, denominator, out=g).mul_(size))


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose decay acts on the weights alone, w <- (1 - lr wd) w (Loshchilov & Hutter 2019)."""

    decoupled_weight_decay: bool = True


@dataclass(frozen=True, kw_only=True)
class RmsProp(ElementwiseRule):
    """v <- a v + (1-a) g^2; d = g / (sqrt(v) + eps); w <- w - lr d, or with momentum b <- mu b + d; w <- w - lr b."""

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: Number = 0.0
    centered: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return "square_avg", *("momentum_buffer",) * _is_used(self.momentum), *("grad_avg",) * self.centered

    def _step(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None:  # noqa: ARG002
        square = roles["square_avg"].mul_(self.alpha).addcmul_(g, g, value=1 - self.alpha)
        if self.centered:
            mean = roles["grad_avg"].lerp_(g, 1 - self.alpha)
            square = square.addcmul(mean, mean, value=-1)
        step = g.div_(square.sqrt().add_(self.eps))
        if _is_used(self.momentum):
            step = roles["momentum_buffer"].mul_(self.momentum).add_(step)
        w.addcmul_(step, lr, value=-1)


@dataclass(frozen=True, kw_only=True)
class Adagrad(ElementwiseRule):
    """s <- s + g^2; w <- w - lr / (1 + (t-1) decay) g / (sqrt(s) + eps) (Duchi et al. 2011)."""

    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def start(self, weights: Tensor) -> Roles:
        return {"sum": torch.full_like(weights, self.initial_accumulator_value)}

    def _step(self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor) -> None:
        total = roles["sum"].addcmul_(g, g)
        size = (lr / (1 + (t - 1) * self.lr_decay)).to(w.dtype) if self.lr_decay else lr
        w.addcmul_(g.div_(total.sqrt().add_(self.eps)), size, value=-1)


RULES: Registry[type[Rule]] = Registry(
    "optimizer for replicas side by side",
    {name: traits.stacked_rule for name, traits in OPTIMIZER_TRAITS.items() if traits.stacked_rule},
)


def make_rule(training: Training, network: nn.Module, lr: float | None = None) -> Rule:
    """Return the experiment's update rule; raise ExperimentError for an optimizer that stacked replicas cannot use.

    `lr` replaces the experiment's own learning rate, as in `make_optimizer`.
    """
    if not isinstance(training.optimizer, str) or ":" in training.optimizer:
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} is your own and steps one replica at a time; stacked replicas "
            f"on one device need one of {', '.join(RULES)}"
        )
    if training.optimizer not in RULES:
        raise ExperimentError(
            f'training.optimizer = "{training.optimizer}" steps one replica at a time; stacked replicas on one '
            f"device need one of {', '.join(RULES)}"
        )
    rule, optimizer = RULES[training.optimizer], make_optimizer(training, network, lr)
    options = optimizer.defaults
    if isinstance(optimizer, Muon):
        options = options | _muon_fields(optimizer, network)
    return rule(**{field.name: options[field.name] for field in fields(rule) if field.name in options})


def stack_rules(rules: Sequence[Rule], like: Tensor) -> Rule:
    """Combine the rules of replicas into one: numbers that differ become columns."""
    columns: dict[str, Any] = {}
    for field in fields(rules[0]):
        values = [getattr(rule, field.name) for rule in rules]
        if any(value != values[0] for value in values):
            columns[field.name] = torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
    return replace(rules[0], **columns)


def _is_used(number: Number) -> bool:
    return isinstance(number, Tensor) or number != 0


def _add_multiple(to: Tensor, of: Tensor, factor: Number) -> Tensor:
    return to.addcmul_(of, factor) if isinstance(factor, Tensor) else to.add_(of, alpha=factor)


class StackedOptimizer:
    """The trained columns of the weights of k replicas, their gradients, and the rule's state."""

    def __init__(self, rule: Rule, weights: Tensor, learning: list[slice], clip: float | None = None) -> None:
        self.rule = rule
        self._columns = {name: value for name, value in vars(rule).items() if isinstance(value, Tensor)}
        self.weights = weights
        self.trainable_parameters = learning
        """Columns of the parameters that are learned; the others are frozen."""
        self.clip = clip
        self.gradient = torch.zeros_like(weights)
        self.roles = rule.start(weights)
        fine = torch.float32 if weights.device.type == "mps" else torch.float64  # Apple's GPUs do not support doubles
        self.steps = torch.zeros(len(weights), 1, dtype=fine, device=weights.device)
        """Steps that each replica has taken."""
        self.lr = torch.zeros(len(weights), 1, dtype=weights.dtype, device=weights.device)

    def step(self, rows: slice = slice(None)) -> None:
        g = self.gradient[rows]
        if self.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
            g.mul_((self.clip / (norm + 1e-6)).clamp_(max=1))
        t = self.steps[rows].add_(1)
        roles = {role: matrix[rows] for role, matrix in self.roles.items()}
        columns: dict[str, Any] = {name: column[rows] for name, column in self._columns.items()}
        rule = replace(self.rule, **columns) if columns else self.rule
        rule.update_all(self.weights[rows], g, roles, self.lr[rows], t, learning=self.trainable_parameters)

    def forget(self, rows: slice = slice(None)) -> None:
        for role, matrix in self.rule.start(self.weights[rows]).items():
            self.roles[role][rows].copy_(matrix)
        self.steps[rows].zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return all state that changes from step to step, by name, without the weights."""
        return {**self.roles, "steps": self.steps}


@dataclass(frozen=True, kw_only=True)
class MuonRule(Rule):
    """Muon for the columns of matrices, AdamW for embeddings, and a partner for all others, as in `Muon`."""

    matrices: tuple[tuple[int, Shape], ...] = ()
    """First column of each matrix, or stack of matrices, and its shape."""
    tables: tuple[tuple[int, int], ...] = ()
    """The columns of each embedding that AdamW changes: the first, and the one after the last."""
    lr_ratio: Number = 1.0
    """The partner's learning rate in units of Muon's."""
    table_lr_ratio: Number = 1.0
    """The learning rate of embeddings in units of Muon's."""
    momentum: Number = 0.9
    nesterov: bool = True
    steps: int = 3
    partner: str = "sgd"

    @property
    def roles(self) -> tuple[str, ...]:
        tables = self._adamw.roles if self.tables else ()
        return tuple(dict.fromkeys(("momentum_buffer", *self._partner.roles, *tables)))

    @property
    def _adamw(self) -> Rule:
        return AdamW(weight_decay=self.weight_decay)

    @property
    def _partner(self) -> Rule:
        if self.partner == "adamw":
            return self._adamw
        nesterov = self.nesterov and _is_used(self.momentum)
        return Sgd(weight_decay=self.weight_decay, momentum=self.momentum, nesterov=nesterov)

    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, lr: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        """Update the matrices of all replicas together, then the columns of AdamW and of the partner."""
        learned = [
            (start, shape)
            for start, shape in self.matrices
            if any(columns.start <= start < columns.stop for columns in learning)
        ]
        updates = [self._direction(start, shape, g, roles) for start, shape in learned]
        products = factors([gram(update) for update in updates], self.steps)
        for (start, shape), q, z in zip(learned, products, updates, strict=True):
            weights = _columns(w, start, shape)
            if _is_used(self.weight_decay):
                weights.mul_(1 - lr * self.weight_decay)
            step = (q @ z if shape[1] <= shape[2] else z @ q).view(len(w), -1)
            weights.addcmul_(step, lr, value=-shape_scale(shape))
        slices = [slice(start, start + padded_size(math.prod(shape))) for start, shape in learned]
        tables = [
            slice(start, stop)
            for start, stop in self.tables
            if any(columns.start <= start < columns.stop for columns in learning)
        ]
        self._adamw.update_all(w, g, roles, lr * self.table_lr_ratio, t, learning=tables)
        others = _without(learning, slices + tables)
        self._partner.update_all(w, g, roles, lr * self.lr_ratio, t, learning=others)

    def _direction(self, start: int, shape: Shape, g: Tensor, roles: Roles) -> Tensor:
        gradient, buffer = _columns(g, start, shape), _columns(roles["momentum_buffer"], start, shape)
        buffer.lerp_(gradient, 1 - self.momentum)
        direction = gradient.lerp(buffer, self.momentum) if self.nesterov else buffer
        return direction.reshape(-1, *shape[1:])  # all replicas' matrices one after another


def _columns(matrix: Tensor, start: int, shape: Shape) -> Tensor:
    return matrix[:, start : start + math.prod(shape)]


def _without(learning: Sequence[slice], others: Sequence[slice]) -> list[slice]:
    rest = []
    for columns in learning:
        start = columns.start
        for gap in sorted(
            (item for item in others if columns.start <= item.start < columns.stop), key=lambda item: item.start
        ):
            if start < gap.start:
                rest.append(slice(start, gap.start))
            start = gap.stop
        if start < columns.stop:
            rest.append(slice(start, columns.stop))
    return rest


def _muon_fields(optimizer: Muon, network: nn.Module) -> dict[str, Any]:
    """Return the rule's fields that assign columns and learning rates to optimizers."""
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    shapes = {
        parameter: shape
        for group in optimizer.param_groups
        for parameter, shape in zip(group["params"], group.get("shapes", ()), strict=False)
    }
    made: dict[str, Any] = {"matrices": (), "tables": (), "lr_ratio": 1.0, "table_lr_ratio": 1.0, "partner": "sgd"}
    made["steps"] = 0
    start = 0
    for parameter in network.parameters():
        stop, group = start + padded_size(parameter.numel()), groups[parameter]
        if parameter in shapes:
            made["matrices"] += ((start, shapes[parameter]),)
            made["steps"] = group["steps"]
        elif "is_embedding" in group:
            made["tables"] += ((start, stop),)
            made["table_lr_ratio"] = group["lr_ratio"]
        else:
            made |= {"partner": group["rule"], "lr_ratio": group["lr_ratio"]}
        start = stop
    return made
