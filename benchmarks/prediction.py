"""Predicts the training time of worker processes on this machine, then measures it.

    python benchmarks/prediction.py --json prediction.json
    python benchmarks/prediction.py --models resnet lstm tabular --threads 1 2
    python benchmarks/prediction.py --busy 2
    python benchmarks/prediction.py --profile machine.toml; TENFOLD_PROFILE=machine.toml tenfold calibrate --check

Rounds are calibrated once, and for each network the steps of all numbers of workers. Then its settings take turns in
real runs, and the median of each is set against the median of what the clock said before these runs: the signed
error is (predicted - measured) / measured. Computing, waiting and communicating are compared, too, as points of the
whole time. A run is covered if it lies in the 80% interval that was predicted just before it. Kendall's tau says how
well settings of one network are ranked whose times differ by more than 5%. With one worker all strategies are the
same, so it is measured once.

Predictions rest on the ledger of earlier ones, as they do on a machine that is used: the first turns fill it and do not
count. Profile and ledger lie in a folder of their own, or are those of --profile.

With --busy, so many other processes compute all the time, from after the calibration on. Before each run the prediction
looks at how fast the machine is now (about a second), and the median of these predictions counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table
from support.people_models import TASKS, Task
from torch import Tensor

import tenfold
from tenfold.engines.prepare import prepare
from tenfold.machine import cores
from tenfold.prediction import calibration, task_prediction
from tenfold.prediction.ledger import Ledger, Score
from tenfold.workers.task import Resolved

IMAGES = TASKS["LeNet-5"]
MODELS: dict[str, tuple[dict[str, Any], int, Task]] = {
    "lenet5": ({"model": "lenet5"}, 192, IMAGES),
    "cnn": ({"model": "cnn"}, 32, IMAGES),
    "mlp": ({"model": "mlp", "hidden": [512, 256, 128]}, 512, IMAGES),
    **{
        name: ({"model": TASKS[title].make}, steps, TASKS[title])
        for name, title, steps in (("resnet", "ResNet", 16), ("lstm", "LSTM", 64), ("tabular", "tabular MLP", 1024))
    },
}
"""What is trained, how many steps of each worker make a run, and on which data."""
USUAL = ("lenet5", "cnn", "mlp")
KINDS = {"computing": ("data", "compute"), "waiting": ("wait",), "communicating": ("communicate",)}
STRATEGIES, SYNC_EVERY, BATCH = ("allreduce", "butterfly", "ring"), (1, 16), 64


_made: dict[Task, tuple[Tensor, Tensor]] = {}


def samples_of(model: str, count: int) -> tuple[Tensor, Tensor]:
    """Return so many samples for a model."""
    task = MODELS[model][2]
    if task not in _made or len(_made[task][0]) < count:
        _made[task] = task.data(count)
    x, y = _made[task]
    return x[:count], y[:count]


@dataclass
class Setting:
    model: str
    workers: int
    threads: int
    strategy: str
    sync_every: int
    steps: int
    measured: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    """Of each run, the workers' mean seconds by kind."""
    predictions: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    """How fast the machine was before each run, relative to its calibration."""
    predicted_parts: list[dict[str, float]] = field(default_factory=list)
    intervals: list[tuple[float, float]] = field(default_factory=list)
    """The predicted interval before each run."""

    @property
    def predicted(self) -> float:
        return statistics.median(self.predictions)

    @property
    def error(self) -> float:
        return self.predicted / statistics.median(self.measured) - 1

    @property
    def points(self) -> dict[str, float]:
        """By kind of time, (predicted - measured) as a share of the whole measured time."""
        whole = statistics.median(self.measured)

        def seconds(runs: list[dict[str, float]], names: tuple[str, ...]) -> float:
            return statistics.median(sum(parts.get(name, 0.0) for name in names) for parts in runs)

        return {
            kind: (seconds(self.predicted_parts, names) - seconds(self.parts, names)) / whole
            for kind, names in KINDS.items()
        }

    @property
    def coverage(self) -> float:
        """The share of runs whose time lies in the interval that was predicted before it."""
        pairs = zip(self.intervals, self.measured, strict=True)
        return statistics.fmean(low <= seconds <= high for (low, high), seconds in pairs)

    @property
    def score(self) -> Score:
        name = f"{self.model} {self.workers} x {self.threads}, {self.strategy}, {self.sync_every}"
        middle = statistics.median(self.measured)
        return Score(name, self.model, name, self.predicted, self.predicted, self.predicted, middle)

    def experiment(self) -> tenfold.Experiment:
        x, y = samples_of(self.model, self.steps * BATCH * self.workers)
        return tenfold.Experiment(
            **MODELS[self.model][0],
            data={"train": (x, y), "test": (x[:BATCH], y[:BATCH])},
            epochs=1,
            batch_size=BATCH,
            lr=0.01,
            workers=self.workers,
            threads=self.threads,
            strategy=self.strategy,
            sync_every=self.sync_every,
            engine="processes",
        )

    def row(self) -> dict[str, Any]:
        figures = {"predicted": self.predicted, "error": self.error, "points": self.points, "coverage": self.coverage}
        return asdict(self) | figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(USUAL), choices=list(MODELS))
    parser.add_argument("--workers", type=int, nargs="+", help="default: powers of two up to the cores")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="of each worker, up to the cores in all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="turns before these, which only fill the ledger")
    parser.add_argument("--steps", type=float, default=1.0, help="factor on the number of steps of a run")
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute all the time")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="keep what was calibrated here, and the ledger")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    task_prediction.VALID_SECONDS = 0.0  # every prediction looks again
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TENFOLD_PROFILE"] = str((arguments.profile or Path(folder) / "profile.toml").absolute())
        settings = settings_of(arguments)
        calibrated = calibrate(settings)
        with busy(arguments.busy):
            for _ in range(arguments.first):
                take_turns(settings_of(arguments))
            for _ in range(arguments.repeats):
                take_turns(settings)
                if arguments.json:
                    save(settings, calibrated, arguments.json)
    show(settings)
    summarize(settings, calibrated)


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    counts = arguments.workers or [2**k for k in range(cores.budget().bit_length())]
    return [
        Setting(model, workers, threads, strategy, sync_every, steps_of(model, arguments.steps))
        for model in arguments.models
        for threads in arguments.threads
        for workers in counts
        if workers == 1 or workers * threads <= cores.budget()
        for strategy in STRATEGIES
        for sync_every in SYNC_EVERY
        if workers > 1 or (strategy, sync_every) == ("allreduce", 1)
    ]


def calibrate(settings: list[Setting]) -> float:
    """Measure the machine and the steps of all settings; return the seconds that this took."""
    started = perf_counter()
    profile, place = calibration.load_profile()
    profile = calibration.measure_rounds(profile)
    alike: dict[tuple[str, int], list[Setting]] = {}
    for setting in settings:
        alike.setdefault((setting.model, setting.threads), []).append(setting)
    for some in alike.values():
        profile = calibration.measure_steps(profile, some[-1].experiment(), sorted({item.workers for item in some}))
    profile.save(place)
    return perf_counter() - started


def take_turns(settings: list[Setting]) -> None:
    for setting in settings:
        predict(setting)
        measure(setting)


def steps_of(model: str, factor: float) -> int:
    """Return the steps of a run, of which every 16th has the last round."""
    return 16 * max(2, round(MODELS[model][1] * factor / 16))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many other processes compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def predict(setting: Setting) -> None:
    experiment = setting.experiment().replace(engine="virtual", cluster="here")
    prediction = task_prediction.predict_task(prepare(Resolved.of(experiment)))
    setting.predictions.append(prediction.seconds)
    setting.speeds.append(prediction.machine_speed)
    setting.intervals.append(prediction.interval)
    setting.predicted_parts.append({kind: float(times.mean()) for kind, times in prediction.times.items()})


def measure(setting: Setting) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(setting.experiment(), runs=folder)
    setting.measured.append(float(run.seconds or 0.0))
    setting.parts.append(run.times)


def save(settings: list[Setting], calibrated: float, path: Path) -> None:
    rows = [setting.row() for setting in settings if setting.measured]
    content = {"cores": cores.budget(), "calibration_seconds": calibrated, "rows": rows}
    path.write_text(json.dumps(content, indent=2) + "\n")


def show(settings: list[Setting]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for setting in settings:
        low, high = map(statistics.median, zip(*setting.intervals, strict=True))
        middle = statistics.median(setting.measured)
        strategy, every = (setting.strategy, f"every {setting.sync_every}") if setting.workers > 1 else ("any", "")
        table.add_row(
            f"{setting.model} {setting.workers} x {setting.threads}",
            f"{strategy} {every}",
            f"measured {middle:.3f} [{min(setting.measured):.3f}-{max(setting.measured):.3f}] s",
            f"predicted {setting.predicted:.3f} [{low:.3f}-{high:.3f}] s",
            f"{setting.error:+.1%}",
            " ".join(f"{kind[:4]} {points:+.1%}" for kind, points in setting.points.items()),
            f"now {statistics.median(setting.speeds):.2f}x",
        )
    Console(width=160).print(table)


def summarize(settings: list[Setting], calibration_seconds: float) -> None:
    errors = [abs(setting.error) for setting in settings]
    print(f"calibrations: {calibration_seconds:.0f} s; {cores.budget()} cores")
    print(f"within 10%: {sum(error <= 0.1 for error in errors)} of {len(errors)}", end="; ")
    print(f"runs in their 80% interval: {statistics.fmean(setting.coverage for setting in settings):.0%}", end="; ")
    if ranked := Ledger(tuple(setting.score for setting in settings)).rank_correlation():
        print(f"Kendall's tau {ranked[0]:.2f} over {ranked[1]} pairs")
    parts = [abs(points) for setting in settings for points in setting.points.values()]
    print(f"parts within 3 points: {sum(part <= 0.03 for part in parts)} of {len(parts)}, worst {max(parts):.1%}")
    print(f"|error|: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
