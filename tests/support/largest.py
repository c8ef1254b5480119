"""The largest of many step times, in closed form."""

import math

import numpy as np

from tenfold.cluster.hardware import Noise

EULER = 0.5772156649015329


def largest_of_normals(p: int) -> tuple[float, float]:
    """Return m_p and v_p, the mean and variance of the largest of p standard normals: density p phi(x) Phi(x)^(p-1)."""
    from scipy.special import log_ndtr

    x = np.linspace(-10, 12, 22_001)
    density = p * np.exp((p - 1) * log_ndtr(x) - x**2 / 2) / math.sqrt(2 * math.pi)
    mean = float(np.trapezoid(x * density, x))
    return mean, float(np.trapezoid((x - mean) ** 2 * density, x))


def expected_largest(p: int, noise: Noise, spread: float) -> float:
    """Return E[max of p factors with the mean 1].

    Log-normal: exp(mu + sigma m_p + sigma^2 v_p / 2) with mu = -sigma^2 / 2, within 0.2% for sigma up to 0.5.
    Shifted exponential: delta + H_p / rate with delta = 1 - spread and rate = 1 / spread.
    """
    if noise == "log-normal":
        mean, variance = largest_of_normals(p)
        return math.exp(-(spread**2) / 2 + spread * mean + spread**2 * variance / 2)
    return 1 - spread + spread * harmonic(p)


def harmonic(p: int) -> float:
    """Return H_p = 1 + 1/2 + ... + 1/p."""
    if p <= 1000:
        return math.fsum(1 / k for k in range(1, p + 1))
    return math.log(p) + EULER + 1 / (2 * p) - 1 / (12 * p**2)
