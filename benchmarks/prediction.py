"""Predicts the training time of worker processes on this machine, then measures it.

    python benchmarks/prediction.py --json prediction.json
    python benchmarks/prediction.py --busy 2

Rounds are calibrated once, and for each network the steps of all numbers of workers. Then its settings take turns in
real runs on random tensors, one thread a worker, and the median of each is set against what the clock says: the signed
error is (predicted - measured) / measured. With one worker all strategies are the same, so it is measured once.

With --busy, so many other processes compute all the time, from after the calibration on. Before each run the prediction
looks at how fast the machine is now (about a second), and the median of these predictions counts.
"""

import argparse
import json
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

import torch
from rich.console import Console
from rich.table import Table

import tenfold
from tenfold.engines.prepare import prepare
from tenfold.machine import cores
from tenfold.prediction import calibration
from tenfold.prediction import task_prediction as current_speed
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import predict_from_profile

MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "lenet5": ({"model": "lenet5"}, 192),
    "cnn": ({"model": "cnn"}, 32),
    "mlp": ({"model": "mlp", "hidden": [512, 256, 128]}, 512),
}
"""What is trained, and how many steps of each worker make a run."""
STRATEGIES, SYNC_EVERY, BATCH = ("allreduce", "butterfly", "ring"), (1, 16), 64


@dataclass
class Setting:
    model: str
    workers: int
    strategy: str
    sync_every: int
    steps: int
    measured: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    """Of each run, the workers' mean seconds by kind."""
    predictions: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    """How fast the machine was before each run, relative to its calibration."""
    predicted_parts: dict[str, float] = field(default_factory=dict)
    interval: tuple[float, float] = (0.0, 0.0)

    @property
    def predicted(self) -> float:
        return statistics.median(self.predictions)

    @property
    def error(self) -> float:
        return self.predicted / statistics.median(self.measured) - 1

    def experiment(self, x: torch.Tensor, y: torch.Tensor) -> tenfold.Experiment:
        samples = self.steps * BATCH * self.workers
        return tenfold.Experiment(
            **MODELS[self.model][0],
            data={"train": (x[:samples], y[:samples]), "test": (x[:BATCH], y[:BATCH])},
            epochs=1,
            batch_size=BATCH,
            lr=0.01,
            workers=self.workers,
            threads=1,
            strategy=self.strategy,
            sync_every=self.sync_every,
            engine="processes",
        )

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"predicted": self.predicted, "error": self.error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, nargs="+", help="default: powers of two up to the cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=float, default=1.0, help="factor on the number of steps of a run")
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute all the time")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="keep what was calibrated here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    current_speed.VALID_SECONDS = 0.0  # every prediction looks again
    counts = arguments.workers or [2**k for k in range(cores.budget().bit_length())]
    settings = [
        Setting(model, workers, strategy, sync_every, 16 * max(2, round(MODELS[model][1] * arguments.steps / 16)))
        for model in arguments.models
        for workers in counts
        for strategy in STRATEGIES
        for sync_every in SYNC_EVERY
        if workers > 1 or (strategy, sync_every) == ("allreduce", 1)
    ]
    samples = max(setting.steps * setting.workers for setting in settings) * BATCH
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    started = perf_counter()
    profile = calibration.measure_rounds(Profile(made="", machine=calibration.profile_facts()))
    calibrated = perf_counter() - started
    for model in arguments.models:
        alike = [setting for setting in settings if setting.model == model]
        started = perf_counter()
        profile = calibration.measure_steps(profile, alike[-1].experiment(x, y), counts)
        calibrated += perf_counter() - started
        with busy(arguments.busy):
            for _ in range(arguments.repeats):
                for setting in alike:
                    predict(setting, profile, x, y)
                    measure(setting, x, y)
                if arguments.json:
                    save(settings, calibrated, arguments.json)
        show(alike)
    if arguments.profile:
        profile.save(arguments.profile)
    summarize(settings, calibrated)


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


def predict(setting: Setting, profile: Profile, x: torch.Tensor, y: torch.Tensor) -> None:
    task = prepare(setting.experiment(x, y))
    now, speed = current_speed.profile_now(task, profile)
    prediction = predict_from_profile(task, now)
    setting.predictions.append(prediction.seconds)
    setting.speeds.append(speed)
    low, high = setting.interval if len(setting.predictions) > 1 else prediction.interval
    setting.interval = min(low, prediction.interval[0]), max(high, prediction.interval[1])
    setting.predicted_parts = {kind: float(times.mean()) for kind, times in prediction.times.items()}


def measure(setting: Setting, x: torch.Tensor, y: torch.Tensor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = tenfold.train(setting.experiment(x, y), runs=folder)
    setting.measured.append(float(run.seconds or 0.0))
    setting.parts.append(run.times)


def save(settings: list[Setting], calibrated: float, path: Path) -> None:
    rows = [setting.row() for setting in settings if setting.measured]
    content = {"cores": cores.budget(), "calibration_seconds": calibrated, "rows": rows}
    path.write_text(json.dumps(content, indent=2) + "\n")


def show(settings: list[Setting]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for setting in settings:
        low, high = setting.interval
        middle = statistics.median(setting.measured)
        strategy, every = (setting.strategy, f"every {setting.sync_every}") if setting.workers > 1 else ("any", "")
        table.add_row(
            f"{setting.model} x {setting.workers}",
            f"{strategy} {every}",
            f"measured {middle:.3f} [{min(setting.measured):.3f}-{max(setting.measured):.3f}] s",
            f"predicted {setting.predicted:.3f} [{low:.3f}-{high:.3f}] s",
            f"{setting.error:+.1%}",
            f"now {statistics.median(setting.speeds):.2f}x",
        )
    Console(width=120).print(table)


def summarize(settings: list[Setting], calibration_seconds: float) -> None:
    errors = [abs(setting.error) for setting in settings]
    print(f"calibrations: {calibration_seconds:.0f} s; {cores.budget()} cores")
    print(f"within 10%: {sum(error <= 0.1 for error in errors)} of {len(errors)}", end="; ")
    print(f"|error|: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
