"""What a profile holds: measurements of one machine, each with the setting that it was made in."""

from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from tenfold.cluster.hardware import Floats
from tenfold.experiment.values import Count, Positive
from tenfold.prediction import fit


class Entry(BaseModel):
    """Base of everything that a profile holds: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Step(Entry):
    """Steps of some workers that train together. All times are in seconds."""

    work: str
    """What is trained: network, shape of the data, optimizer, precision."""
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
    """Steps that were measured, over all workers."""
    warmup: float = 0.0
    """Extra seconds that the first steps of a process take."""
    round: float | None = None
    """One exact round of all these workers between these steps. Default: there was one worker."""
    quantiles: dict[str, float] = {}
    """Quantiles of the steps divided by their worker's mean."""
    trace: tuple[str, ...] = ()
    """For each worker its steps in turn, in thousandths of the mean."""

    @field_validator("trace")
    @classmethod
    def _whole(cls, trace: tuple[str, ...]) -> tuple[str, ...]:
        rows = [line.split() for line in trace]
        if len({len(row) for row in rows}) > 1 or not all(word.isdigit() and int(word) for row in rows for word in row):
            raise ValueError("a trace has a line of whole numbers above 0 for each worker, all of one length")
        return trace

    def slowed(self, factor: float) -> Self:
        """Return the steps of a machine that takes `factor` times as long."""
        seconds = {"mean": self.mean, "warmup": self.warmup} | ({"round": self.round} if self.round is not None else {})
        return self.model_copy(update={name: value * factor for name, value in seconds.items()})

    def step_times(self) -> Floats | None:
        """Return the trace in seconds [steps, workers]; None where it was not kept."""
        rows = [[int(word) for word in line.split()] for line in self.trace]
        return np.array(rows, dtype=np.float64).T * self.mean / 1e3 if rows else None


class Averaging(Entry):
    """Rounds of one kind among `workers` workers: seconds, by the bytes of one worker's weights."""

    transport: Literal["shared-memory", "gloo", "mpi"]
    workers: Count
    kind: Literal["group", "neighbours"]
    """Exact means in groups, or each combines what it reads from others."""
    fan: Count
    """How many replicas each reads, including itself."""
    seconds: dict[int, float]
    latency: float
    bandwidth: Positive
    """Bytes a second; with the latency, the least-squares line through the seconds."""
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
        line = fit.fit_line(list(seconds), list(seconds.values()))
        bandwidth = 1 / line.slope if line.slope else 1e15
        return cls(seconds=seconds, latency=line.intercept, bandwidth=bandwidth, residual=line.residual, **fields)

    def slowed(self, factor: float) -> Self:
        """Return the rounds of a machine that takes `factor` times as long."""
        seconds = {nbytes: one * factor for nbytes, one in self.seconds.items()}
        return self.model_copy(
            update={"seconds": seconds, "latency": self.latency * factor, "bandwidth": self.bandwidth / factor}
        )

    def price(self, nbytes: int) -> float:
        """Return the seconds of a round: between measured sizes on their polygon, beyond them by the fitted line."""
        sizes = sorted(self.seconds)
        line = fit.Line(self.latency, 1 / self.bandwidth)
        if sizes[0] <= nbytes <= sizes[-1]:
            return fit.interpolate(nbytes, sizes, [self.seconds[size] for size in sizes])
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
    """What a compression or an outer optimizer adds to a round, by the bytes of the weights."""
    orthogonalization: dict[str, dict[int, float]] = {}
    """Share of a step that the matrices take which workers divide (Muon), by the work and the batch size."""
    save: dict[int, float] = {}
    """A checkpoint, by the bytes of the weights."""

    def slowed(self, factor: float) -> Self:
        """Return the costs of a machine that takes `factor` times as long."""
        overhead = {name: {size: one * factor for size, one in by.items()} for name, by in self.round_overhead.items()}
        return self.model_copy(
            update={
                "adding": self.adding * factor,
                "start": {workers: one * factor for workers, one in self.start.items()},
                "sharing": self.sharing * factor,
                "round_overhead": overhead,
                "save": {nbytes: one * factor for nbytes, one in self.save.items()},
            }
        )


def write_trace(burst: Floats) -> tuple[str, ...]:
    """Write step times [steps, workers] as text, in thousandths of their mean."""
    return tuple(" ".join(str(max(1, round(1e3 * value))) for value in worker) for worker in (burst / burst.mean()).T)
