"""L-BFGS for a coordinator that decides from scalars and holds no vectors.

The vectors (weights, gradients, history) are rows of `Vectors`, which workers store in slices (Dean et al. 2012,
"Sandblaster"). There are two commands: `evaluate` computes the loss and its gradient at x + t d, and `combine` scales
and adds rows and returns dot products of rows. An iteration needs one command to find the direction, two for each trial
of the line search, and one to move.

The direction is d = -H g. With the pairs s_i = x_{i+1} - x_i, y_i = g_{i+1} - g_i and rho_i = 1 / y_i's_i, the two
loops are

    q = g;    a_i = rho_i s_i'q,  q = q - a_i y_i        from the newest pair to the oldest
    q = q s'y / y'y                                      of the newest pair
    b_i = rho_i y_i'q,  q = q + (a_i - b_i) s_i          from the oldest pair to the newest

where q remains a linear combination of the pairs and g. The loops therefore run on its coefficients and a matrix of dot
products (Chen, Wang & Zhou 2014), and a direction is a single command. The step along it satisfies the strong Wolfe
conditions (Nocedal & Wright, algorithms 3.5 and 3.6), with the constants of torch.optim.LBFGS: the iterates are the
same up to rounding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.errors import ExperimentError

X_ROWS, SEARCH_ROWS = 2, 4
DIRECTION, SCRATCH = X_ROWS + SEARCH_ROWS, X_ROWS + SEARCH_ROWS + 1
FIRST_PAIR = SCRATCH + 1
"""Rows: two of weights, the gradients of a line search, the direction, one to work in, then s and y of each pair."""
DECREASE, CURVATURE = 1e-4, 0.9
"""The constants c1 and c2 of Wolfe's conditions."""
MOST_TRIALS = 25
LEAST_CURVATURE = 1e-10
"""A pair with a smaller s'y is left out."""


class SandblasterLBFGS(torch.optim.Optimizer):
    """The options of L-BFGS with joint steps of all workers: each step is one iteration on the batches of all."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        history_size: int = 10,
        portions: int | None = None,
        growth: float | None = None,
        first_samples: int = 512,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
    ) -> None:
        """Keep `history_size` pairs, and cut a batch into `portions` (default: 4 or more for each worker).

        With `growth`, the theta of Bollapragada et al. 2018 (0.9 there), a step uses only some samples of its batch:
        `first_samples` at the beginning, and more whenever the test of their paper finds the gradient too noisy.
        """
        for name, value in (("history_size", history_size), ("portions", portions), ("first_samples", first_samples)):
            if value is not None and value < 1:
                raise ExperimentError(f"training.optimizer_options: {name} is {value}; it must be at least 1")
        if growth is not None and growth <= 0:
            raise ExperimentError(f"training.optimizer_options: growth is {growth}; it must be more than 0")
        super().__init__(params, {"lr": lr})
        self.options: dict[str, Any] = {
            "lr": lr,
            "history_size": history_size,
            "portions": portions,
            "growth": growth,
            "first_samples": first_samples,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
        }

    def step(self, closure: Any = None) -> NoReturn:  # noqa: ARG002
        """Raise an error, because a single worker cannot step."""
        raise RuntimeError("sandblaster-lbfgs needs tenfold.train, because all workers take each step together")


class Combined(NamedTuple):
    """The results of combining rows."""

    products: NDArray[np.float64]
    """The dot products of the rows `left` with the rows `right`."""
    largest: float
    """The largest absolute value in the first row of `left`."""
    absolute_sum: float
    """The sum of the absolute values in it."""


Sums = Mapping[int, Mapping[int, float]]
"""For each row that is written, the rows that are added and their scales."""


class Vectors(ABC):
    """The rows of vectors under the coordinator's commands."""

    @abstractmethod
    def evaluate(self, x: int, step: float, samples: int | None) -> tuple[float, dict[int, float]]:
        """Evaluate the loss at row x + step d, on all or some `samples` of the batch; return loss and gradient.

        The gradient is a map from the rows of its portions to their weights.
        """

    @abstractmethod
    def combine(self, sums: Sums, left: Sequence[int], right: Sequence[int]) -> Combined:
        """Write sums of scaled rows to other rows; return the dot products of the rows `left` and `right`."""


@dataclass
class LbfgsState:
    """The state between two iterations: numbers, and the indices of vector rows."""

    x: int = 0
    gradient: int = -1
    """-1: not evaluated yet."""
    loss: float = math.nan
    samples: int = 0
    """How many samples of a batch the last step used; 0 before the first one."""
    iterations: int = 0
    pairs: list[int] = field(default_factory=list)
    """The rows of s, from the oldest to the newest; y is in the row after each."""
    products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """The dot products of rows, as far as they are needed."""

    def numbers(self) -> NDArray[np.float64]:
        small = [self.x, self.gradient, self.loss, self.samples, self.iterations, len(self.pairs), *self.pairs]
        return np.concatenate([[len(self.products)], small, self.products.ravel()])

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> "LbfgsState":
        rows, x, gradient, _, samples, iterations, count = (0 if math.isnan(n) else int(n) for n in numbers[:7])
        end = 7 + count
        products = numbers[end : end + rows * rows].reshape(rows, rows).copy()
        return cls(x, gradient, float(numbers[3]), samples, iterations, [int(n) for n in numbers[7:end]], products)


def row_count(history_size: int) -> int:
    """Return the number of vector rows without portions, including a spare pair for the next iteration."""
    return FIRST_PAIR + 2 * (history_size + 1)


class SearchPoint(NamedTuple):
    """A point of the line search."""

    step: float
    loss: float
    slope: float
    """The derivative of the loss along the direction."""
    gradient: int
    """The row of the gradient."""


class LbfgsCoordinator:
    """Runs iterations of L-BFGS by commands to `vectors`."""

    def __init__(self, vectors: Vectors, options: Mapping[str, Any], state: LbfgsState | None = None) -> None:
        """Continue from a state, if given; otherwise row 0 has the initial weights."""
        self.vectors = vectors
        self.options = options
        rows = row_count(options["history_size"])
        self.state = state or LbfgsState(products=np.zeros((rows, rows)))

    def iterate(self, *, same_batch: bool, all_samples: int) -> float:
        """Run one iteration on a batch, and return the loss before it.

        With `same_batch` the samples are those of the last iteration; if it used all of them, loss and gradient are
        known.
        """
        state, growth = self.state, self.options["growth"]
        samples = None if growth is None else min(all_samples, state.samples or self.options["first_samples"])
        is_same_point = same_batch and state.gradient >= 0 and (growth is None or state.samples >= all_samples)
        gradient, weights = (None, {}) if is_same_point else self._evaluate_here(samples)
        direction = self._find_direction()
        if samples is not None and weights:
            samples = self._grow(samples, all_samples, weights)
            if samples > state.samples:
                gradient, weights = self._evaluate_here(samples)
                direction = self._find_direction()
        before, slope = state.loss, float(state.products[DIRECTION, state.gradient])
        tolerance = self.options["tolerance_change"]
        state.iterations += 1
        if not slope <= -tolerance or (gradient and gradient.largest <= self.options["tolerance_grad"]):
            return before
        scale = gradient.absolute_sum if gradient and state.iterations == 1 else 1.0
        first = self.options["lr"] * min(1.0, 1.0 / scale)
        here = SearchPoint(0.0, state.loss, slope, state.gradient)
        best = search_line(lambda step, kept: self._try(step, samples, kept), here, first, direction.largest, tolerance)
        if best.step:
            self._move(best)
        return before

    def _evaluate_here(self, samples: int | None) -> tuple[Combined, dict[int, float]]:
        """Evaluate loss and gradient at the weights; return products with the gradient, and its portions."""
        state = self.state
        state.loss, weights = self.vectors.evaluate(state.x, 0.0, samples)
        state.gradient, state.samples = X_ROWS, samples or 0
        return self._combine({state.gradient: weights}, [state.gradient], self._pair_rows()), weights

    def _find_direction(self) -> Combined:
        state = self.state
        coefficients = apply_inverse_hessian({state.gradient: -1.0}, state.pairs, state.products)
        return self._combine({DIRECTION: coefficients}, [DIRECTION], [state.gradient])

    def _try(self, step: float, samples: int | None, kept: Iterable[int]) -> SearchPoint:
        """Evaluate a point of the line search; its gradient is written to a row that is not in `kept`."""
        loss, weights = self.vectors.evaluate(self.state.x, step, samples)
        used = {self.state.gradient, *kept}
        out = next(row for row in range(X_ROWS, X_ROWS + SEARCH_ROWS) if row not in used)
        self._combine({out: weights}, [out], [DIRECTION])
        return SearchPoint(step, loss, float(self.state.products[out, DIRECTION]), out)

    def _move(self, best: SearchPoint) -> None:
        """Move to the point chosen by the line search, and store the pair of differences."""
        state, old = self.state, self.state.gradient
        s = next(row for row in range(FIRST_PAIR, len(state.products), 2) if row not in state.pairs)
        self._combine(
            {
                1 - state.x: {state.x: 1.0, DIRECTION: best.step},
                s: {DIRECTION: best.step},
                s + 1: {best.gradient: 1.0, old: -1.0},
            },
            [s, s + 1, best.gradient],
            [*self._pair_rows(), s, s + 1],
        )
        state.x, state.gradient, state.loss = 1 - state.x, best.gradient, best.loss
        if state.products[s, s + 1] > LEAST_CURVATURE:
            state.pairs = [*state.pairs, s][-self.options["history_size"] :]

    def _grow(self, samples: int, all_samples: int, weights: Mapping[int, float]) -> int:
        """Return the number of samples by the inner product quasi-Newton test (Bollapragada et al. 2018, section 2.1).

        The variance over samples i of g_i'HHg, divided by their number, must be at most theta^2 (g'HHg)^2. Here g is
        the gradient of every other portion, and the variance is taken over the remaining portions, times the samples of
        a portion, because noise that g shares with a g_i would count as signal. The number at most doubles.
        """
        state, first, rest = self.state, list(weights)[::2], list(weights)[1::2]
        if samples >= all_samples or len(rest) < 2:
            return samples
        whole = sum(weights[row] for row in first)
        self._combine({SCRATCH: {row: weights[row] / whole for row in first}}, [SCRATCH], self._pair_rows())
        once = apply_inverse_hessian({SCRATCH: 1.0}, state.pairs, state.products)
        twice = apply_inverse_hessian(once, state.pairs, state.products)
        other = state.gradient + 1
        inner = self.vectors.combine({other: twice}, [other], rest).products[0]
        variance = float(inner.var(ddof=1)) * samples / len(weights)
        signal = max(0.0, float(inner.mean()))
        enough = variance <= samples * (self.options["growth"] * signal) ** 2
        return samples if enough else min(all_samples, 2 * samples)

    def _pair_rows(self) -> list[int]:
        return [row for s in self.state.pairs for row in (s, s + 1)]

    def _combine(self, sums: Sums, left: Sequence[int], right: Sequence[int]) -> Combined:
        combined = self.vectors.combine(sums, left, right)
        self.state.products[np.ix_(left, right)] = combined.products
        self.state.products[np.ix_(right, left)] = combined.products.T
        return combined


def apply_inverse_hessian(
    terms: Mapping[int, float], pairs: Sequence[int], products: NDArray[np.float64]
) -> dict[int, float]:
    """Return H q as coefficients of rows, given the coefficients of q and the dot products of all these rows."""
    q = np.zeros(len(products))
    for row, coefficient in terms.items():
        q[row] = coefficient
    alphas = {}
    for s in reversed(pairs):
        alphas[s] = products[s] @ q / products[s, s + 1]
        q[s + 1] -= alphas[s]
    if pairs:
        newest = pairs[-1]
        q *= products[newest, newest + 1] / products[newest + 1, newest + 1]
    for s in pairs:
        q[s] += alphas[s] - products[s + 1] @ q / products[s, s + 1]
    return {int(row): float(q[row]) for row in np.flatnonzero(q)}


def search_line(
    evaluate: Callable[[float, list[int]], SearchPoint],
    here: SearchPoint,
    first: float,
    largest: float,
    tolerance: float,
) -> SearchPoint:
    """Return a point that satisfies the strong Wolfe conditions, or the best one after `MOST_TRIALS`.

    `evaluate` takes a step and the rows of gradients to keep. `largest` is the direction's largest absolute value: the
    search ends if the weights would change by less than `tolerance`.
    """

    def decreases(trial: SearchPoint) -> bool:
        return trial.loss <= here.loss + DECREASE * trial.step * here.slope

    def is_flat(trial: SearchPoint) -> bool:
        return abs(trial.slope) <= -CURVATURE * here.slope

    # increase the step until two steps bracket a minimum
    before, trial, trials = here, evaluate(first, []), 0
    while decreases(trial) and not (trials > 1 and trial.loss >= before.loss):
        if is_flat(trial):
            return trial
        if trial.slope >= 0 or trials == MOST_TRIALS:
            break
        longer = minimum_of_cubic(before, trial, trial.step + 0.01 * (trial.step - before.step), 10 * trial.step)
        before, trial = trial, evaluate(longer, [trial.gradient])
        trials += 1
    if trials == MOST_TRIALS:
        return min(here, trial, key=lambda end: end.loss)

    # find the minimum in the bracket: `low` has the lower loss
    low, high = sorted((before, trial), key=lambda end: _finite(end.loss))
    clings = False
    while trials < MOST_TRIALS and abs(high.step - low.step) * largest >= tolerance:
        left, right = sorted((low.step, high.step))
        step = minimum_of_cubic(low, high, left, right)
        margin = 0.1 * (right - left)
        near = min(right - step, step - left) < margin
        if near and (clings or step >= right or step <= left):
            step, near = (right - margin if right - step < step - left else left + margin), False
        clings = near
        trial = evaluate(step, [low.gradient, high.gradient])
        trials += 1
        if not decreases(trial) or trial.loss >= low.loss:
            low, high = sorted((low, trial), key=lambda end: _finite(end.loss))
            continue
        if is_flat(trial):
            return trial
        if trial.slope * (high.step - low.step) >= 0:
            high = low
        low = trial
    return low


def minimum_of_cubic(a: SearchPoint, b: SearchPoint, least: float, most: float) -> float:
    """Return the minimum, within limits, of the cubic through two points with slopes; the middle if there is none.

    For a to the left of b: b - (b - a) (b' + d2 - d1) / (b' - a' + 2 d2), d1 = a' + b' - 3 (f(a) - f(b)) / (a - b),
    d2 = sqrt(d1^2 - a' b') (Nocedal & Wright, equation 3.59).
    """
    if a.step > b.step:
        a, b = b, a
    width = b.step - a.step
    d1 = a.slope + b.slope + 3 * (a.loss - b.loss) / width
    square = d1 * d1 - a.slope * b.slope
    if not math.isfinite(square) or square < 0:
        return (least + most) / 2
    d2 = math.sqrt(square)
    bottom = b.slope - a.slope + 2 * d2
    minimum = b.step - width * ((b.slope + d2 - d1) / bottom) if bottom else math.nan
    return min(max(minimum, least), most) if math.isfinite(minimum) else (least + most) / 2


def _finite(loss: float) -> float:
    return loss if loss == loss else math.inf
