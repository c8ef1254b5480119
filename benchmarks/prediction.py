"""Predicts the training time of worker processes on this machine, then measures it.

    python benchmarks/prediction.py --json prediction.json

For each network one calibration comes first. Then its settings take turns in real runs on random tensors, one thread a
worker, and the median of each is set against what the clock says: the signed error is (predicted - measured) /
measured. With one worker all strategies are the same, so it is measured once.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import tenfold
from tenfold.engines import calibration
from tenfold.engines.forecast import forecast
from tenfold.engines.prepare import prepare
from tenfold.machine import cores, crew

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
    predicted: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)

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
        named = ("model", "workers", "strategy", "sync_every", "steps", "measured", "predicted", "interval", "error")
        return {name: getattr(self, name) for name in named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, nargs="+", help="default: powers of two up to the cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=float, default=1.0, help="factor on the number of steps of a run")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    counts = arguments.workers or [2**k for k in range(cores.budget().bit_length())]
    settings = [
        Setting(model, workers, strategy, sync_every, 16 * max(1, round(MODELS[model][1] * arguments.steps / 16)))
        for model in arguments.models
        for workers in counts
        for strategy in STRATEGIES
        for sync_every in SYNC_EVERY
        if workers > 1 or (strategy, sync_every) == ("allreduce", 1)
    ]
    samples = max(setting.steps * setting.workers for setting in settings) * BATCH
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    crew.warm_up()
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            alike = [setting for setting in settings if setting.model == model]
            seconds += predict(alike, x, y, Path(folder) / "profile.toml")
            for _ in range(arguments.repeats):
                for setting in alike:
                    setting.measured.append(measure(setting, x, y))
    show(settings, seconds)
    if arguments.json:
        content = {"cores": cores.budget(), "calibration_seconds": seconds, "rows": [one.row() for one in settings]}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


def predict(settings: list[Setting], x: torch.Tensor, y: torch.Tensor, place: Path) -> float:
    """Calibrate once, predict all settings, and return how long the calibration took."""
    started = perf_counter()
    for setting in settings:
        profile = calibration.ensure(setting.experiment(x, y), path=place)
    seconds = perf_counter() - started
    for setting in settings:
        prediction = forecast(prepare(setting.experiment(x, y)), profile)
        setting.predicted, setting.interval = prediction.seconds, prediction.interval
    return seconds


def measure(setting: Setting, x: torch.Tensor, y: torch.Tensor) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(tenfold.train(setting.experiment(x, y), runs=folder).seconds or 0.0)


def show(settings: list[Setting], calibration_seconds: float) -> None:
    table = Table(
        "model", "workers", "strategy", "every", "measured s: median and range", "predicted s and interval", "error"
    )
    for one in settings:
        low, high = one.interval
        measured = f"{statistics.median(one.measured):.3f} [{min(one.measured):.3f}-{max(one.measured):.3f}]"
        strategy, every = (one.strategy, str(one.sync_every)) if one.workers > 1 else ("any", "any")
        predicted = f"{one.predicted:.3f} [{low:.3f}-{high:.3f}]"
        table.add_row(one.model, str(one.workers), strategy, every, measured, predicted, f"{one.error:+.1%}")
    Console(width=120).print(table)
    errors = [abs(one.error) for one in settings]
    print(f"calibrations: {calibration_seconds:.0f} s; {cores.budget()} cores")
    print(f"within 10%: {sum(error <= 0.1 for error in errors)} of {len(errors)}", end="; ")
    print(f"|error|: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
