"""The coordinator of L-BFGS against torch's own, on rows of one process."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tenfold.training.lbfgs import (
    DIRECTION,
    Combined,
    LbfgsCoordinator,
    LbfgsState,
    SandblasterLBFGS,
    SearchPoint,
    Sums,
    Vectors,
    row_count,
    search_line,
)

PORTIONS = 8


class OneProcess(Vectors):
    """All rows in one array; portions of the batch one after another."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, history_size: int) -> None:
        self.network, self.x, self.y = network, x, y
        self.first = row_count(history_size)
        flat = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
        self.rows = np.zeros((self.first + PORTIONS, len(flat)))
        self.rows[0] = flat
        self.evaluations = 0

    def evaluate(self, x: int, step: float, samples: int | None) -> tuple[float, dict[int, float]]:
        self.evaluations += 1
        at = torch.from_numpy(self.rows[x] + step * self.rows[DIRECTION])
        nn.utils.vector_to_parameters(at, self.network.parameters())
        count = samples or len(self.x)
        total, weights = 0.0, {}
        for portion, rows in enumerate(torch.arange(count).tensor_split(PORTIONS)):
            self.network.zero_grad()
            loss = nn.functional.cross_entropy(self.network(self.x[rows]), self.y[rows])
            loss.backward()
            gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
            self.rows[self.first + portion] = nn.utils.parameters_to_vector(gradients).numpy()
            weights[self.first + portion] = len(rows) / count
            total += loss.item() * len(rows) / count
        return total, weights

    def combine(self, sums: Sums, left: Sequence[int], right: Sequence[int]) -> Combined:
        for out, terms in sums.items():
            self.rows[out] = sum(self.rows[row] * scale for row, scale in terms.items())
        sizes = np.abs(self.rows[left[0]])
        return Combined(self.rows[left] @ self.rows[right].T, sizes.max(), sizes.sum())


def problem(samples: int = 400) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x = torch.randn(samples, 8, dtype=torch.float64)
    return network, x, (x @ torch.randn(8, 3, dtype=torch.float64)).argmax(1)


def options(**given: object) -> dict[str, object]:
    return SandblasterLBFGS([nn.Parameter(torch.zeros(1))], **given).options  # type: ignore[arg-type]


@pytest.mark.parametrize(("history_size", "lr"), [(10, 1.0), (3, 1.0), (10, 0.3)])
def test_iterates_are_those_of_torch(history_size: int, lr: float) -> None:
    network, x, y = problem()
    vectors = OneProcess(network, x, y, history_size)
    coordinator = LbfgsCoordinator(vectors, options(history_size=history_size, lr=lr))
    losses = [coordinator.iterate(same_batch=step > 0, all_samples=len(x)) for step in range(20)]

    reference, x, y = problem()
    lbfgs = torch.optim.LBFGS(
        reference.parameters(), lr, max_iter=1, max_eval=26, history_size=history_size, line_search_fn="strong_wolfe"
    )
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        lbfgs.zero_grad()
        loss = nn.functional.cross_entropy(reference(x), y)
        loss.backward()
        return loss

    expected = [lbfgs.step(closure).item() for _ in range(20)]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert vectors.evaluations == evaluations - 19  # torch evaluates where each step begins, too


def test_a_state_survives_as_numbers() -> None:
    network, x, y = problem()
    vectors = OneProcess(network, x, y, 4)
    through = LbfgsCoordinator(vectors, options(history_size=4))
    for step in range(8):
        through.iterate(same_batch=step > 0, all_samples=len(x))
        through.state = LbfgsState.of(through.state.numbers())
    network, x, y = problem()
    plain = LbfgsCoordinator(OneProcess(network, x, y, 4), options(history_size=4))
    for step in range(8):
        plain.iterate(same_batch=step > 0, all_samples=len(x))
    assert through.state.loss == plain.state.loss


def test_samples_grow_while_the_gradient_is_noisy() -> None:
    network, x, y = problem(4000)
    y = torch.where(torch.rand(len(y)) < 0.3, torch.randint(3, y.shape), y)  # no network can learn all of them
    vectors = OneProcess(network, x, y, 10)
    coordinator = LbfgsCoordinator(vectors, options(growth=0.9, first_samples=64))
    used = []
    for _ in range(40):
        order = torch.randperm(len(x))
        vectors.x, vectors.y = x[order], y[order]
        coordinator.iterate(same_batch=False, all_samples=len(x))
        used.append(coordinator.state.samples)
    assert used == sorted(used)
    assert used[0] < 1000
    assert used[-1] > used[0]


@pytest.mark.parametrize("first", [1e-3, 0.3, 1.0, 30.0])
def test_a_line_search_satisfies_the_strong_wolfe_conditions(first: float) -> None:
    def loss(t: float) -> tuple[float, float]:
        return (t - 2) ** 2 * (1 + 0.1 * t * t), 2 * (t - 2) * (1 + 0.1 * t * t) + (t - 2) ** 2 * 0.2 * t

    here = SearchPoint(0.0, *loss(0.0), 0)
    found = search_line(lambda step, _: SearchPoint(step, *loss(step), 1), here, first, 1.0, 1e-9)
    assert found.loss <= here.loss + 1e-4 * found.step * here.slope
    assert abs(found.slope) <= 0.9 * abs(here.slope)


def test_a_loss_that_is_not_finite_shortens_the_step() -> None:
    def evaluate(step: float, _: list[int]) -> SearchPoint:
        return (
            SearchPoint(step, (step - 1) ** 2, 2 * (step - 1), 1) if step < 5 else SearchPoint(step, np.nan, np.nan, 2)
        )

    found = search_line(evaluate, SearchPoint(0.0, 1.0, -2.0, 0), 10.0, 1.0, 1e-9)
    assert found.loss < 1.0
