import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold.prediction import measurements as fit

seconds = st.floats(1e-7, 1e-1)


class TestLine:
    @given(seconds, st.floats(1e-12, 1e-8))
    def test_latency_and_rate_come_back_from_exact_points(self, latency: float, rate: float) -> None:
        sizes = [1e3, 1e5, 1e7]
        found = fit.fit_line(sizes, [latency + rate * size for size in sizes])
        assert [found(size) for size in sizes] == pytest.approx([latency + rate * size for size in sizes], rel=1e-4)
        assert found.residual < 1e-4

    def test_noise_is_kept_as_the_residual(self) -> None:
        generator = np.random.default_rng(0)
        sizes = np.geomspace(1e3, 1e8, 200)
        noisy = (1e-4 + 1e-9 * sizes) * np.exp(0.05 * generator.standard_normal(200))
        found = fit.fit_line(sizes, noisy)
        assert found.intercept == pytest.approx(1e-4, rel=0.03)
        assert found.slope == pytest.approx(1e-9, rel=0.03)
        assert found.residual == pytest.approx(0.05, rel=0.2)

    @given(st.lists(seconds, min_size=3, max_size=3))
    def test_neither_number_is_below_zero(self, measured: list[float]) -> None:
        found = fit.fit_line([1.0, 2.0, 3.0], measured)
        assert found.intercept >= 0
        assert found.slope >= 0

    def test_one_point_gives_a_rate_alone(self) -> None:
        assert fit.fit_line([64], [0.64]) == fit.Line(0.0, 0.01)

    def test_seconds_must_be_above_zero(self) -> None:
        with pytest.raises(ValueError, match="y > 0"):
            fit.fit_line([1.0, 2.0], [1.0, 0.0])


class TestInterpolate:
    @given(st.lists(seconds, min_size=4, max_size=4))
    def test_it_passes_through_what_was_measured(self, measured: list[float]) -> None:
        sizes = [8.0, 1.0, 4.0, 2.0]
        found = [fit.interpolate(size, sizes, measured) for size in sizes]
        assert found == pytest.approx(measured)

    def test_a_power_law_is_a_straight_line(self) -> None:
        assert fit.interpolate(4, [2, 8], [2**0.5, 8**0.5]) == pytest.approx(2)

    def test_beyond_the_ends_nothing_changes(self) -> None:
        assert fit.interpolate(100, [1, 2], [3, 4]) == pytest.approx(4)


class TestSpread:
    def test_the_factors_of_workers_and_steps_come_back(self) -> None:
        generator = np.random.default_rng(1)
        workers = np.exp(0.1 * generator.standard_normal(400))
        bursts = [3e-3 * workers * np.exp(0.2 * generator.standard_normal((100, 400))) for _ in range(3)]
        found = fit.burst_statistics(bursts)
        assert found.mean == pytest.approx(3e-3 * workers.mean() * np.exp(0.02), rel=0.01)
        assert found.between_workers == pytest.approx(0.1, rel=0.1)
        assert found.between_steps == pytest.approx(0.2, rel=0.05)

    def test_chance_alone_makes_no_slow_worker(self) -> None:
        generator = np.random.default_rng(2)
        found = fit.burst_statistics([np.exp(0.3 * generator.standard_normal((50, 300)))])
        assert found.between_workers < 0.02

    def test_one_disturbed_burst_does_not_move_the_level(self) -> None:
        calm, disturbed = np.full((20, 2), 1e-3), np.full((20, 2), 5e-3)
        found = fit.burst_statistics([calm, disturbed, calm])
        assert found.mean == pytest.approx(1e-3)
        assert found.standard_error > 0.5

    def test_rare_long_steps_are_kept(self) -> None:
        steps = np.ones((1000, 1))
        steps[:8] = 30.0
        found = fit.burst_statistics([steps])
        assert found.quantiles[-1] / found.quantiles[0] == pytest.approx(30)
        assert len(found.quantiles) == len(fit.LEVELS)
