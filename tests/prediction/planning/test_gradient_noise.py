"""The noise of gradients, seen from how far replicas move apart."""

import math

import pytest
import torch

from tenfold.prediction.planning.evidence import data_factor, noise_batch


@pytest.mark.parametrize(("batch", "steps", "sigma"), [(64, 1, 0.5), (16, 8, 2.0), (256, 4, 0.05)])
def test_the_noise_of_synthetic_gradients_is_found(batch: int, steps: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(3)
    gradient = torch.randn(2000, generator=generator)
    rate, replicas = 0.01, 64
    noise = torch.randn(replicas, steps, 2000, generator=generator) * sigma / math.sqrt(batch)
    moves = -rate * (gradient + noise).sum(dim=1)
    expected = 2000 * sigma**2 / float(gradient.square().sum())
    assert noise_batch(moves, batch, steps) == pytest.approx(expected, rel=0.1)


def test_replicas_without_a_common_direction_have_infinite_noise() -> None:
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert noise_batch(moves, 8, 1) == math.inf


def test_equal_replicas_have_no_noise() -> None:
    assert noise_batch(torch.ones(4, 3), 8, 1) == 0.0


def test_batches_far_below_the_noise_need_the_same_samples() -> None:
    assert data_factor(64, 32, 1e6) == pytest.approx(1.0, abs=1e-3)
    assert data_factor(2048, 1024, 1.0) == pytest.approx(2.0, abs=1e-2)
    assert data_factor(64, 32, math.inf) == 1.0
