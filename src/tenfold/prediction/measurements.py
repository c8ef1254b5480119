"""The measurements in a profile: steps, rounds, evaluations and other costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from scipy.optimize import lsq_linear

from tenfold.cluster.hardware import Floats
from tenfold.data import Splits, Tensors
from tenfold.experiment.values import Count, Positive


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def tiny_regression() -> Splits:
    """Return a data set for regressing one number on another, which costs almost nothing to train."""
    part = Tensors(torch.zeros(64, 1), torch.ones(64, 1))
    return Splits(name="numbers", train=part, shape=(1,), classes=None, outputs=1)


def random_images() -> Splits:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1, 28, 28, generator=generator)
    y = torch.randint(10, (4096,), generator=generator)
    test = Tensors(x[:512], y[:512])
    return Splits(name="noise", train=Tensors(x, y), test=test, shape=(1, 28, 28), classes=10, outputs=10)


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope x, neither below zero."""

    intercept: float
    slope: float
    residual: float = 0.0
    """Root of the mean squared relative error, (fitted - measured) / measured."""

    def __call__(self, x: float) -> float:
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Line:
    """Fit a latency and a rate to measured seconds by least squares of the relative errors, both at least 0.

    Minimizes sum_i ((a + b x_i - y_i) / y_i)^2, so that short times count as much as long ones. One point, or
    several at one x, say nothing about the latency: then a = 0.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) == 0 or (ys <= 0).any():
        raise ValueError(f"a line needs at least one point, all with y > 0; got {ys.tolist()}")
    if np.ptp(xs) == 0:
        slope = float(np.median(ys)) / xs[0] if xs[0] else 0.0
        return Line(0.0 if xs[0] else float(np.median(ys)), float(slope))
    unit = xs.max()
    system = np.column_stack([1 / ys, xs / unit / ys])
    scale = np.abs(system).max(axis=0)
    coefficients = lsq_linear(system / scale, np.ones(len(ys)), bounds=(0, np.inf), tol=1e-14).x / scale
    fitted = coefficients[0] + coefficients[1] * xs / unit
    return Line(float(coefficients[0]), float(coefficients[1] / unit), float(np.sqrt(np.mean((fitted / ys - 1) ** 2))))


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return y at x, interpolated between the logarithms of the points; beyond the ends, y of the nearest end.

    Costs that outgrow one cache after another do not follow one line over three orders of magnitude, so the curve is
    piecewise and passes through the measured points.
    """
    order = np.argsort(xs)
    logs = np.log(np.asarray(xs, dtype=np.float64)[order]), np.log(np.asarray(ys, dtype=np.float64)[order])
    return float(np.exp(np.interp(np.log(x), *logs)))


def over_threads(threads: int, measured: Mapping[int, float]) -> float:
    """Return the seconds of a step with `threads` threads, from measurements with other numbers of threads.

    Between two measurements, the logarithms are interpolated. Beyond them the seconds follow a + b / threads, a serial
    and a parallel part (Amdahl 1967), fitted to all measurements and scaled to pass through the nearest.
    """
    counts = list(measured)
    nearest = min(max(threads, min(counts)), max(counts))
    amdahl = fit_line([1 / count for count in counts], list(measured.values()))
    at = interpolate(nearest, counts, list(measured.values()))
    return at * amdahl(1 / threads) / amdahl(1 / nearest)


def burst_statistics(bursts: Sequence[Floats]) -> dict[str, Any]:
    """Describe bursts of step times, each an array [steps, workers], by fields of `Step`.

    The level is the median of the bursts' means, because a disturbance on a shared machine is brief and should affect
    at most one burst; its standard error comes from the differences between bursts. The model is Y_it = s_i e_it: s_i
    comes from the workers' means over all bursts, minus the variation expected by chance, and e_it from all steps
    divided by the mean of their worker in their burst.
    """
    mean = float(np.median([burst.mean() for burst in bursts]))
    between_steps = float(np.std(np.log(np.concatenate([(burst / burst.mean(axis=0)).ravel() for burst in bursts]))))
    workers = np.mean([np.log(burst.mean(axis=0) / burst.mean()) for burst in bursts], axis=0)
    by_chance = between_steps**2 / sum(len(burst) for burst in bursts)
    variance = float(np.var(workers, ddof=1)) - by_chance if len(workers) > 1 else 0.0
    means = [burst.mean() / mean for burst in bursts]
    return {
        "mean": mean,
        "standard_error": float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0,
        "between_workers": float(np.sqrt(max(0.0, variance))),
        "between_steps": between_steps,
    }


class Entry(BaseModel):
    """The base of all entries of a profile: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Step(Entry):
    """Steps of workers that train together. All times are in seconds."""

    work: str
    """The part of an experiment on which step times depend: network, shape of the data, optimizer, precision."""
    batch_size: Count
    threads: Count
    workers: Count
    """Workers that trained at the same time, on the same machine."""
    mean: Positive
    standard_error: float = 0.0
    """Standard error of the mean, relative."""
    between_workers: float = 0.0
    """Standard deviation of the logarithm of the workers' means."""
    between_steps: float = 0.0
    """Standard deviation of the logarithm of one worker's steps."""
    samples: int = 1
    """Number of measured steps, over all workers."""
    load: float = 0.0
    """Load average per core during the measurement."""
    at: str = ""
    """When they were measured, in UTC."""
    clock_mhz: float | None = None
    """The clock frequency of the processor during the measurement. Default: not known."""
    warmup: float = 0.0
    """Extra seconds that the first steps of a process take."""
    round: float | None = None
    """One exact round of all these workers between these steps. Default: none, because there was one worker."""
    round_shares: tuple[float, float] | None = None
    """The shares of that round recorded as computing and as communicating; the rest is waiting."""
    trace: tuple[str, ...] = ()
    """For each worker, its steps in order, in thousandths of the mean."""

    @field_validator("trace")
    @classmethod
    def _whole(cls, trace: tuple[str, ...]) -> tuple[str, ...]:
        rows = [line.split() for line in trace]
        if len({len(row) for row in rows}) > 1 or not all(word.isdigit() and int(word) for row in rows for word in row):
            raise ValueError(
                "a trace should have one line per worker, all of the same length, of whole numbers above 0"
            )
        return trace

    def slowed(self, factor: float) -> Self:
        """Return the steps of a machine that takes `factor` times as long."""
        seconds = {"mean": self.mean, "warmup": self.warmup} | ({"round": self.round} if self.round is not None else {})
        return self.model_copy(update={name: value * factor for name, value in seconds.items()})

    def step_times(self) -> Floats | None:
        """Return the trace in seconds [steps, workers], or None if it was not kept."""
        rows = [[int(word) for word in line.split()] for line in self.trace]
        return np.array(rows, dtype=np.float64).T * self.mean / 1e3 if rows else None


class Averaging(Entry):
    """Rounds of one kind among `workers` workers: seconds, by the bytes of one worker's weights."""

    transport: Literal["shared-memory", "gloo", "mpi"]
    workers: Count
    kind: Literal["group", "neighbors"]
    """Exact averages within groups, or each worker combines its weights with its neighbors' weights."""
    fan: Count
    """The number of replicas that each worker reads, including its own."""
    seconds: dict[int, float]
    latency: float
    bandwidth: Positive
    """Bytes per second; together with the latency, the least-squares fit to the seconds."""
    residual: float = 0.0
    """Root of the mean squared relative error of that line."""

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if not self.seconds or min(self.seconds) <= 0 or min(self.seconds.values()) <= 0:
            raise ValueError("it needs at least one measurement, of more than 0 bytes and 0 seconds")
        return self

    @classmethod
    def of(cls, seconds: dict[int, float], **fields: Any) -> Self:
        """Fit latency and bandwidth to the measured seconds."""
        line = fit_line(list(seconds), list(seconds.values()))
        bandwidth = 1 / line.slope if line.slope else 1e15
        return cls(seconds=seconds, latency=line.intercept, bandwidth=bandwidth, residual=line.residual, **fields)

    def slowed(self, factor: float) -> Self:
        """Return the rounds of a machine that takes `factor` times as long."""
        seconds = {nbytes: item * factor for nbytes, item in self.seconds.items()}
        return self.model_copy(
            update={"seconds": seconds, "latency": self.latency * factor, "bandwidth": self.bandwidth / factor}
        )

    def cost(self, nbytes: int) -> float:
        """Return the seconds of a round, interpolated between measured sizes and extrapolated by the fitted line."""
        sizes = sorted(self.seconds)
        line = Line(self.latency, 1 / self.bandwidth)
        if sizes[0] <= nbytes <= sizes[-1]:
            return interpolate(nbytes, sizes, [self.seconds[size] for size in sizes])
        end = sizes[0] if nbytes < sizes[0] else sizes[-1]
        return self.seconds[end] * line(nbytes) / line(end)


class Evaluating(Entry):
    """An evaluation of `samples` samples by several workers together."""

    work: str
    threads: Count
    workers: Count
    samples: Count
    seconds: float


class Costs(Entry):
    """Other costs, in seconds."""

    adding: float = 0.0
    """One byte of weights added to another."""
    start: dict[int, float] = {}
    """From the start of a run to its first step, by the number of workers; without the data."""
    sharing: float = 0.0
    """Copying one byte of data into shared memory."""
    round_overhead: dict[str, dict[int, float]] = {}
    """The cost that a compression or an outer optimizer adds to a round, by the bytes of the weights."""
    round_overhead_shares: dict[str, dict[int, tuple[float, float]]] = {}
    """The shares of that cost recorded as computing and as communicating. Default: all is computing."""
    round_overhead_load: float = 0.0
    """Load average per core while `round_overhead` was measured."""
    rounds_load: float = 0.0
    """Load average per core while rounds in shared memory were measured."""
    orthogonalization: dict[str, dict[int, float]] = {}
    """The share of a step spent on matrices that workers divide (Muon), by the work and the batch size."""
    save: dict[int, float] = {}
    """A checkpoint, by the bytes of the weights."""

    def slowed(self, factor: float) -> Self:
        """Return the costs of a machine that takes `factor` times as long."""
        overhead = {
            name: {size: item * factor for size, item in by.items()} for name, by in self.round_overhead.items()
        }
        return self.model_copy(
            update={
                "adding": self.adding * factor,
                "start": {workers: item * factor for workers, item in self.start.items()},
                "sharing": self.sharing * factor,
                "round_overhead": overhead,
                "save": {nbytes: item * factor for nbytes, item in self.save.items()},
            }
        )


def write_trace(burst: Floats) -> tuple[str, ...]:
    """Write step times [steps, workers] as text, in thousandths of their mean."""
    return tuple(" ".join(str(max(1, round(1e3 * value))) for value in worker) for worker in (burst / burst.mean()).T)
