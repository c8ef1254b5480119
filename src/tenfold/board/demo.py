"""The demo: the loop of PyTorch's tutorials, one worker, and a worker per core train the same network in turns."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tenfold.api.simulate import forecast
from tenfold.api.train import finished_run, train_and_record
from tenfold.board.demo_tasks import TASKS, RaceTask, image_task
from tenfold.board.race import PROFILE, Contestant, Race
from tenfold.data import Splits, load
from tenfold.engines import resolve
from tenfold.engines.base import Engine, Outcome
from tenfold.engines.prepare import prepare
from tenfold.errors import DataError, ExperimentError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.machine.cores import load_is_high
from tenfold.machine.metadata import profile_path, using_profile
from tenfold.prediction.calibration import measure_until, silent, work_of
from tenfold.prediction.probes import FEWEST_STEPS, step_burst
from tenfold.registry import MODELS, suggest
from tenfold.reports.display import Display
from tenfold.reports.forecast import signed_percent
from tenfold.reports.formatting import duration, metric_value, plural
from tenfold.runs import Run
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, EpochEnded, Event, Metric, Recorded, Span, Started, Stopwatch
from tenfold.runs.open_run import open_run
from tenfold.runs.store import one_invocation
from tenfold.workers.fork_server import start_server
from tenfold.workers.task import Task, make_network

CALIBRATION_SECONDS, TINY_CALIBRATION_SECONDS = 8.0, 2.0
"""Seconds of step measurements for predicting the race."""
POINTS = 10
"""The minimum number of evaluations of a contestant."""
BURSTS, BURST_STEPS = 9, 20
"""The number of bursts for predicting the tutorial's loop, and the steps of each. The range of nine bursts is an 80%
interval, as for other predictions: a tenth burst lies outside it in two of ten cases."""
LOG_EVERY = 10
LONGEST_STATE = "12 min 34 s  99.99%"
EVALUATED_AT_ONCE = 500


class TutorialLoop(Engine):
    """The training loop of PyTorch's tutorials: DataLoader, loss, backward, step."""

    name = "tutorial-loop"

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, _resumption: Resumption | None = None) -> Outcome:
        """Train to the end; only training counts, as in every other run."""
        epochs, per_epoch, threads = task.experiment.training.epochs, task.steps_per_epoch, cores.budget()
        count = -(-POINTS // epochs)  # evaluations of an epoch, the last at its end
        places = {round(per_epoch * place / count) for place in range(1, count + 1)}
        started = stopwatch.now()
        with cores.using_threads(threads):
            network = make_network(task)
            emit(Span(at=0.0, kind="start", seconds=started))
            sizes: dict[str, Any] = {
                "batch_size": task.experiment.training.samples_per_step,
                "train_samples": len(task.splits.train),
            }
            emit(Started(at=stopwatch.now(), steps_per_epoch=per_epoch, workers=1, **sizes))
            seconds, evaluating = 0.0, 0.0
            measured: dict[str, float] = {}
            began = time.perf_counter()
            for step, loss in enumerate(steps_of(network, task), 1):
                place = (step - 1) % per_epoch + 1
                if step % LOG_EVERY and place not in places:
                    continue
                seconds = time.perf_counter() - began - evaluating
                here: dict[str, Any] = {"step": step, "epoch": (step - 1) // per_epoch, "seconds": seconds}
                emit(Metric(at=stopwatch.now(), name="loss", value=float(loss), part="train", **here))
                if place in places:
                    measured = evaluate(network, task.splits)
                    for name, value in measured.items():
                        emit(Metric(at=stopwatch.now(), name=name, value=value, part="test", **here))
                    evaluating = time.perf_counter() - began - seconds
                if place == per_epoch:
                    tested = {f"test_{name}": value for name, value in measured.items()}
                    emit(EpochEnded(at=stopwatch.now(), epoch=here["epoch"], metrics=tested))
        emit(Span(at=started, kind="compute", seconds=seconds, count=epochs * per_epoch))
        samples = epochs * len(task.splits.train)
        result = {
            "part": "test",
            "metrics": measured,
            "seconds": seconds,
            "times": {"compute": seconds, "evaluate": evaluating, "start": started},
            "epochs": epochs,
            "steps": epochs * per_epoch,
            "samples": samples,
            "samples_per_second": samples / seconds if seconds else None,
            "workers": 1,
            "threads": threads,
        }
        return Outcome(result, network.state_dict())


def steps_of(network: nn.Module, task: Task) -> Iterator[Tensor]:
    training, part = task.experiment.training, task.splits.train
    optimizer = torch.optim.SGD(network.parameters(), lr=training.lr or 0.0, momentum=training.momentum or 0.0)
    loader = DataLoader(TensorDataset(part.x, part.y), batch_size=training.samples_per_step, shuffle=True)  # type: ignore[attr-defined]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.epochs * len(loader))
    for _ in range(training.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            yield loss.detach()


def evaluate(network: nn.Module, splits: Splits) -> dict[str, float]:
    part: Any = splits.test
    network.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for x, y in zip(part.x.split(EVALUATED_AT_ONCE), part.y.split(EVALUATED_AT_ONCE), strict=True):
            outputs = network(x)
            correct += int((outputs.argmax(1) == y).sum())
            loss += float(nn.functional.cross_entropy(outputs, y, reduction="sum"))
    network.train()
    return {"accuracy": correct / len(part.y), "loss": loss / len(part.y)}


def predict_tutorial(experiment: Experiment) -> tuple[float, tuple[float, float]]:
    """Return the predicted seconds of the loop, measured on bursts of its steps, and their range as an 80% interval."""
    task = prepare(resolve(experiment))
    whole = task.steps_per_epoch * experiment.training.epochs
    count = max(1, min(BURST_STEPS, whole // (4 * (BURSTS + 1))))  # no more than a quarter of the race
    seconds = []
    with cores.using_threads(cores.budget()):
        steps = steps_of(make_network(task), task)
        for _ in range(BURSTS + 1):
            began = time.perf_counter()
            deque(islice(steps, count), maxlen=0)
            seconds.append((time.perf_counter() - began) / count * whole)
    return median(seconds[1:]), (min(seconds[1:]), max(seconds[1:]))  # the first prepares torch's kernels


class Side(NamedTuple):
    """A contestant before the race: its name, its description, and its experiment."""

    name: str
    about: str
    experiment: Experiment


def make_sides(task: RaceTask) -> list[Side]:
    """Return the contestants, each with the number of epochs needed to reach the target."""
    budget = cores.budget()
    count, threads = max(2, budget), 1 if task.is_tiny else budget
    loop_epochs, single, few, many = task.epochs
    base = Experiment(model=task.model, data=task.data, evaluate_every=1.0 if task.is_tiny else 1 / POINTS)
    base = base.replace(oversubscribe=count > budget, engine="processes")
    tutorial: dict[str, Any] = {"optimizer": "sgd", "lr": task.lr, "momentum": 0.9, "batch_size": 64}
    tutorial |= {"schedule": "cosine", "warmup": 0, "engine": TutorialLoop, "epochs": loop_epochs}
    sides = {
        "the tutorial's loop": (
            f"plain PyTorch: DataLoader, SGD, {plural(budget, 'thread')}",
            base.replace(**tutorial),
        ),
        "one worker": (f"Tenfold, Muon, {plural(threads, 'thread')}", base.replace(epochs=single, threads=threads)),
        f"{count} workers": (
            "Tenfold, Muon, 1 thread each",
            base.replace(epochs=few if count <= 4 else many, workers=count, threads=1),
        ),
    }
    return [
        Side(name, f"{about}, {plural(experiment.training.epochs, 'epoch')}", experiment.replace(name=name))
        for name, (about, experiment) in sides.items()
    ]


def choose_task(model: str, report: Callable[[str], None]) -> RaceTask:
    """Return the task of this name; models not in `TASKS` train on MNIST, or on digits if MNIST is unavailable."""
    if model in TASKS:
        return TASKS[model]
    if ":" not in model and model not in MODELS:
        raise ExperimentError(f"unknown model '{model}'; {suggest(model, [*MODELS, *TASKS])}, or package:Class")
    try:
        load("mnist")
    except DataError:
        report("MNIST is not available, so the digits that come with scikit-learn are used instead")
        return image_task(model, "digits")
    return image_task(model, "mnist")


def measure_steps(alone: Experiment, many: Experiment, seconds: float) -> None:
    """Make a new profile with the steps of one worker and of all, measured alternately for this many seconds."""
    profile_path().unlink(missing_ok=True)
    task = prepare(resolve(many))
    settings = [(prepare(resolve(item)).threads, item.parallel.workers) for item in (alone, many)]
    step_burst(task.experiment, task.splits, (work_of(task)[1], *settings[-1]), FEWEST_STEPS)  # the first is slow
    profile, _ = measure_until(time.perf_counter() + seconds, task, settings, silent)
    profile.save()


def prepare_race(task: RaceTask, runs: Path, report: Callable[[str], None]) -> tuple[Race, list[Side]]:
    """Return a race with a predicted finish for each contestant; nothing is trained yet.

    Measurements for the predictions are kept in the folder of its runs.
    """
    sides = make_sides(task)
    tutorial, alone, many = (side.experiment for side in sides)
    about = 5 if task.is_tiny else 15
    report(f"measuring steps on this machine for about {about} s, to predict each finish")
    if load_is_high():
        report("other programs use most of the cores, so times are long and unreliable")
    start_server()
    predicted = []
    with using_profile(runs / PROFILE):
        measure_steps(alone, many, TINY_CALIBRATION_SECONDS if task.is_tiny else CALIBRATION_SECONDS)
        for experiment in (alone, many):
            prediction = forecast(experiment, cluster="here", progress=False).forecasts[0].prediction
            predicted.append((prediction.seconds, prediction.interval))
    predicted.insert(0, predict_tutorial(tutorial))
    report(f"the race takes about {duration(sum(seconds for seconds, _ in predicted))} of training, predicted")
    goal = f" to {task.target:.0%}" if task.target else ""
    race = Race(
        title=f"Race{goal}: {task.title}",
        task="one after another, each alone on the machine",
        machine=f"{plural(cores.budget(), 'core')} of this machine",
        target=task.target,
        contestants=[
            Contestant(name=side.name, about=side.about, seconds=seconds, interval=around)
            for side, (seconds, around) in zip(sides, predicted, strict=True)
        ],
        experiment=alone.replace(engine="auto", batch_size=64).model_dump(mode="json", exclude_none=True),
    )
    return race, sides


class RaceDisplay(Display):
    """Shows a race on a terminal: a bar for each contestant on one axis of training time, with flags; or lines."""

    WIDEST, NARROWEST = 60, 12

    def __init__(self, race: Race, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(quiet=quiet, console=console)
        self.race = race
        self._longest = 1.15 * max(contestant.seconds for contestant in race.contestants)
        self._seconds = [0.0] * len(race.contestants)
        self._accuracies: list[float | None] = [None] * len(race.contestants)
        self._turn = -1

    def begin(self, turn: int) -> None:
        self._turn, contestant = turn, self.race.contestants[turn]
        self._say(f"{contestant.name} ({contestant.about}): {duration(contestant.seconds)} predicted", style="dim")

    def listen(self, event: Event) -> None:
        if isinstance(event, Metric) and not event.worker:
            self._seconds[self._turn] = event.seconds
            if event.part == "test" and event.name == "accuracy":
                self._accuracies[self._turn] = event.value

    def finish(self, run: Run) -> None:
        contestant = self.race.contestants[self._turn]
        self._seconds[self._turn] = run.seconds or 0.0
        short = "" if self.race.has_finished(run) else ", below the target"
        off = f" (prediction off by {signed_percent(contestant.seconds / run.seconds - 1)})" if run.seconds else ""
        self._say(
            f"{contestant.name}: {duration(run.seconds)} measured{off}, "
            f"{metric_value('accuracy', run.accuracy)} test accuracy{short}"
        )

    def conclude(self, verdict: str) -> None:
        self._say(verdict)

    def drawing(self) -> Table:
        """Draw the bars; a flag stands where a contestant was predicted to finish."""
        self._longest = max(self._longest, *self._seconds)
        names = [contestant.name for contestant in self.race.contestants]
        states = [self._state(at) for at in range(len(names))]
        labels_width = max(map(len, names)) + max(map(len, [*states, LONGEST_STATE])) + 4
        width = max(self.NARROWEST, min(self.WIDEST, self.console.width - labels_width))
        table = Table.grid(padding=(0, 2, 0, 0))
        for at, item in enumerate(self.race.contestants):
            reached, flag = (
                round(seconds / self._longest * (width - 1)) for seconds in (self._seconds[at], item.seconds)
            )
            cells = ["━" if place < reached else "·" for place in range(width)]
            cells[min(flag, width - 1)] = "⚑"
            style = "bold" if at == self._turn else "dim"
            table.add_row(Text(item.name, style=style), Text("".join(cells), style=style), Text(states[at]))
        longest = duration(self._longest)
        table.add_row("", Text(f"0{longest:>{width - 1}}", style="dim"), Text("training time", style="dim"))
        goal = f", race to {self.race.target:.0%}" if self.race.target else ""
        table.add_row("", Text(f"⚑ predicted finish{goal}", style="dim"), "")
        for column in table.columns:
            column.no_wrap = True
        return table

    def _state(self, at: int) -> str:
        """Return the training time of a contestant so far, and its accuracy."""
        if not self._seconds[at]:
            return "waiting"
        accuracy = self._accuracies[at]
        measured = [] if accuracy is None else [metric_value("accuracy", accuracy)]
        return "  ".join([duration(self._seconds[at]), *measured])


@one_invocation()
def run_race(race: Race, sides: Sequence[Side], runs: Path, display: RaceDisplay) -> dict[int, Run]:
    """Let the contestants train one after another, and return their runs by number."""
    finished: dict[int, Run] = {}
    for turn, (contestant, side) in enumerate(zip(race.contestants, sides, strict=True)):
        display.begin(turn)

        def listen(event: Event, contestant: Contestant = contestant) -> None:
            if isinstance(event, Recorded):
                contestant.run = event.run
                race.save(runs)
            display.listen(event)

        run = finished_run(train_and_record(side.experiment, runs=runs, kind="demo", listen=listen))
        display.finish(run)
        finished[run.id] = open_run(run.id, runs=runs)
    race.save(runs)
    return finished
