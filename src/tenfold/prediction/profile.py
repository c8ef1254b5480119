"""The measurements of a machine, as a value that loads from and saves to TOML, and the times that a clock needs."""

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from tenfold.cluster.hardware import RoundCost, StepTime
from tenfold.common.files import read_regular, write_atomically
from tenfold.errors import MachineError
from tenfold.experiment.values import explain
from tenfold.machine.metadata import MOST_LOAD_PER_CORE, profile_path
from tenfold.mixing import Round
from tenfold.prediction.measurements import (
    Averaging,
    Costs,
    Entry,
    Evaluating,
    Step,
    fit_line,
    interpolate,
    over_threads,
)

ADVICE = "run `tenfold calibrate`"
DIGITS = 5


class Profile(Entry):
    """The measurements of a machine."""

    made: str
    """When it was measured, in UTC."""
    machine: dict[str, Any]
    """Its metadata: processor, cores, torch and other packages."""
    costs: Costs = Costs()
    averaging: tuple[Averaging, ...] = ()
    evaluating: tuple[Evaluating, ...] = ()
    steps: tuple[Step, ...] = ()

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Read a profile, by default the one saved by `tenfold calibrate`."""
        path = Path(path) if path is not None else profile_path()
        try:
            return cls(**tomllib.loads(read_regular(path).decode()))
        except FileNotFoundError:
            raise MachineError(f"there is no profile {path}; {ADVICE} to measure this machine") from None
        except ValidationError as error:
            first = explain(error, cls).splitlines()[0]
            raise MachineError(f"{path} is not a valid profile of this version: {first}; {ADVICE} again") from None
        except (OSError, ValueError) as error:
            raise MachineError(f"the profile {path} cannot be read: {error}; {ADVICE} again") from None

    def save(self, path: str | Path | None = None) -> Path:
        import tomli_w

        path = Path(path) if path is not None else profile_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tomli_w.dumps(_written(self.model_dump(exclude_none=True))).encode()
            write_atomically(path, content, named_by_user=True)
        except OSError as error:
            raise MachineError(f"the profile {path} cannot be written: {error.strerror}; name another file") from None
        return path

    def check(self, metadata: dict[str, Any]) -> str | None:
        """Return why this profile does not apply to a machine with these metadata, as a sentence; None if it does."""
        then, now = _identity(self.machine), _identity(metadata)
        for what, value in now.items():
            if then[what] != value:
                return (
                    f"the profile does not fit this machine: its {what} is {then[what]}, here it is {value}; {ADVICE}"
                )
        return None

    def add(self, **entries: Iterable[Entry]) -> Self:
        """Return the profile with new entries, which replace earlier entries for the same setting."""
        merged = {}
        for name, new in entries.items():
            by_setting = {_setting(entry): entry for entry in (*getattr(self, name), *new)}
            merged[name] = tuple(by_setting[setting] for setting in sorted(by_setting))
        return self.model_copy(update=merged)

    def with_costs(self, **costs: Any) -> Self:
        return self.model_copy(update={"costs": self.costs.model_copy(update=costs)})

    def slowed(self, factor: float, *, rounds: float | None = None) -> Self:
        """Return the profile of a machine that takes `factor` times as long, or `rounds` times as long for rounds."""
        of_rounds = factor if rounds is None else rounds
        return self.model_copy(
            update={
                "costs": self.costs.slowed(factor),
                "averaging": tuple(entry.slowed(of_rounds) for entry in self.averaging),
                "evaluating": tuple(
                    entry.model_copy(update={"seconds": entry.seconds * factor}) for entry in self.evaluating
                ),
                "steps": tuple(step.slowed(factor) for step in self.steps),
            }
        )

    def has_step(self, work: str, batch_size: int, threads: int, workers: int) -> bool:
        setting = (work, batch_size, threads, workers)
        return any((s.work, s.batch_size, s.threads, s.workers) == setting for s in self.steps)

    def nearest_step(self, work: str, batch_size: int, threads: int, workers: int) -> Step:
        """Return the measured steps of this work in the setting nearest to this one."""
        measured = [step for step in self.steps if step.work == work]
        counts = self.measured_threads(work)
        if threads not in counts and len(counts) < 2:
            instead = f"; it has {', '.join(map(str, counts))} threads" if counts else ""
            raise MachineError(f"the profile has no steps of {work} with {threads} thread(s){instead}; {ADVICE} FILE")
        nearest = min(counts, key=lambda count: _apart(count, threads))
        fitting = [step for step in measured if step.threads == nearest]
        return min(fitting, key=lambda step: (_apart(step.workers, workers), _apart(step.batch_size, batch_size)))

    def load_of(self, work: str) -> float:
        """Return the highest load per core while steps of this work were measured, or 0 if none were."""
        return max((step.load for step in self.steps if step.work == work), default=0.0)

    def without_busy_steps(self, work: str) -> Self:
        """Return the profile without steps of this work measured while other programs were running."""
        left = [step for step in self.steps if step.work != work or step.load <= MOST_LOAD_PER_CORE]
        return self if len(left) == len(self.steps) else self.model_copy(update={"steps": tuple(left)})

    def without_steps_of_another_hour(self, work: str) -> Self:
        """Return the profile without steps of this work measured more than an hour ago."""
        earliest = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
        left = tuple(step for step in self.steps if step.work != work or step.at >= earliest)
        return self if len(left) == len(self.steps) else self.model_copy(update={"steps": left})

    def measured_threads(self, work: str) -> list[int]:
        return sorted({step.threads for step in self.steps if step.work == work})

    def step_time(self, work: str, batch_size: int, threads: int, workers: int) -> StepTime:
        """Return how long a step takes when `workers` workers train together.

        If this number of threads was not measured, the time is interpolated or extrapolated from two or more others. It
        cannot be extrapolated to more threads if the most threads measured are not faster than the fewest.
        """
        nearest = self.nearest_step(work, batch_size, threads, workers)
        if nearest.threads == threads:
            return self._step_time(work, batch_size, threads, workers)
        table = {n: self._step_time(work, batch_size, n, workers) for n in self.measured_threads(work)}
        near, (fewest, *_, most) = table[nearest.threads], sorted(table)
        if threads > most and table[most].mean >= table[fewest].mean:
            raise MachineError(
                f"steps with {threads} threads cannot be predicted, because this machine is not faster with more "
                f"threads: a step takes {table[most].mean:.3g} s with {most} and {table[fewest].mean:.3g} s with "
                f"{fewest}"
            )
        mean = over_threads(threads, {n: item.mean for n, item in table.items()})
        return replace(near, mean=mean, fixed=near.fixed * mean / near.mean)

    def _step_time(self, work: str, batch_size: int, threads: int, workers: int) -> StepTime:
        """Return how long a step takes with a measured number of threads.

        Seconds = a + b B is fitted over the batch sizes measured with the same number of workers; between numbers of
        workers, the logarithms are interpolated. The trace comes from the nearest setting.
        """
        nearest = self.nearest_step(work, batch_size, threads, workers)
        by_count: dict[int, dict[int, float]] = {}
        for step in self.steps:
            if (step.work, step.threads) == (work, threads):
                by_count.setdefault(step.workers, {})[step.batch_size] = step.mean
        lines = {count: fit_line(list(means), list(means.values())) for count, means in by_count.items()}
        means = [by_count[count].get(batch_size, line(batch_size)) for count, line in lines.items()]
        mean = interpolate(workers, list(lines), means)
        several = [count for count, measured in by_count.items() if len(measured) > 1] or list(by_count)
        line = lines[min(several, key=lambda count: _apart(count, workers))]
        fixed = mean * line.intercept / line(batch_size)
        return StepTime(
            mean=mean,
            between_workers=nearest.between_workers,
            between_steps=nearest.between_steps,
            trace=nearest.step_times(),
            fixed=min(fixed, mean),
        )

    def round_cost(self, *, factor: float = 1.0) -> RoundCost:
        """Return the cost of rounds in shared memory, times a factor that depends on the experiment."""
        entries = [entry for entry in self.averaging if entry.transport == "shared-memory"]
        if not entries:
            raise MachineError(f"the profile has no rounds in shared memory; {ADVICE}")

        def cost(round_: Round, nbytes: int) -> float:
            if round_.is_idle:
                return 0.0
            kind = "group" if round_.groups is not None else "neighbors"
            fan = max(map(len, round_.sources))
            return factor * _cost([e for e in entries if e.kind == kind] or entries, len(round_.sources), fan, nbytes)

        return cost

    def start_seconds(self, workers: int, data: int = 0) -> float:
        """Return the seconds before the first step, with `data` bytes of data."""
        return _between(workers, self.costs.start) + data * self.costs.sharing

    def save_seconds(self, nbytes: int) -> float:
        """Return the seconds of a checkpoint, extrapolated in proportion beyond the largest measured one."""
        return _between(nbytes, self.costs.save) * max(1.0, nbytes / max(self.costs.save, default=nbytes))

    def round_overhead(self, names: Sequence[str], nbytes: int) -> tuple[float, tuple[float, float]]:
        """Return the measured seconds that these extras add to a round, and the computing and communicating shares."""
        seconds = [self.costs.round_overhead.get(name, {}).get(nbytes, 0.0) for name in names]
        shares = [self.costs.round_overhead_shares.get(name, {}).get(nbytes, (1.0, 0.0)) for name in names]
        whole = sum(seconds)
        if not whole:
            return 0.0, (1.0, 0.0)
        computing, communicating = (
            sum(each * own for each, own in zip(seconds, of, strict=True)) / whole for of in zip(*shares, strict=True)
        )
        return whole, (computing, communicating)

    def orthogonalization_seconds(self, work: str, batch_size: int, threads: int, workers: int) -> float:
        """Return the seconds of a whole step's orthogonalization, or 0 if its share was not measured.

        The time does not depend on the batch size.
        """
        shares = self.costs.orthogonalization.get(work)
        if not shares:
            return 0.0
        nearest = min(shares, key=lambda size: _apart(size, batch_size))
        return shares[nearest] * self.step_time(work, nearest, threads, workers).mean

    def evaluation_seconds(self, work: str, samples: int, threads: int, workers: int) -> float:
        """Return the seconds of one evaluation, whose samples the workers share, or 0 if none was measured.

        The time per sample comes from the nearest measured setting.
        """
        measured = [entry for entry in self.evaluating if entry.work == work]
        if not measured or not samples:
            return 0.0
        nearest = min(measured, key=lambda entry: (_apart(entry.threads, threads), _apart(entry.workers, workers)))
        return nearest.seconds * (samples / workers) / (nearest.samples / nearest.workers)


def _cost(entries: Sequence[Averaging], workers: int, fan: int, nbytes: int) -> float:
    """Interpolate over the fan for each measured number of workers, then between the numbers of workers.

    A mean over all workers is handled separately, because its fan equals the number of workers.
    """
    by_count: dict[int, dict[int, float]] = {}
    for entry in entries:
        by_count.setdefault(entry.workers, {})[entry.fan] = entry.cost(nbytes)
    if fan == workers:
        costs = {count: interpolate(count, list(fans), list(fans.values())) for count, fans in by_count.items()}
    else:
        telling = {count: fans for count, fans in by_count.items() if fan in fans or len(fans) > 1} or by_count
        costs = {count: interpolate(fan, list(fans), list(fans.values())) for count, fans in telling.items()}
    return interpolate(workers, list(costs), list(costs.values()))


def _between(x: int, measured: dict[int, float]) -> float:
    return interpolate(x, list(measured), list(measured.values())) if measured else 0.0


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))


def _setting(entry: Entry) -> tuple[Any, ...]:
    names = ("transport", "kind", "work", "threads", "workers", "fan", "batch_size")
    return tuple(getattr(entry, name, 0) for name in names)


def _identity(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the metadata, in words, that two machines must share for the step times of one to apply to the other."""
    cpu, torch = metadata.get("cpu", {}), metadata.get("torch", {})
    return {
        "processor": str(cpu.get("model")),
        "number of cpus": str(cpu.get("logical")),
        "budget of cores": str(cpu.get("budget")),
        "torch": str(torch.get("version")),
    }


def _written(value: Any) -> Any:
    """Return a value in TOML's types: no nulls, keys as text, numbers rounded to significant digits."""
    if isinstance(value, dict):
        return {str(key): _written(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
