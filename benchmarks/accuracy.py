"""How good the model is that N workers train: the same epochs, several tasks, by setting and number of workers.

    python benchmarks/accuracy.py --device cuda --minutes 8 --json accuracy.json
    python benchmarks/accuracy.py --tasks digits-mlp regression --workers 1 4 --seeds 1     # a minute on 2 cores

Settings are compared on a validation part that is taken out of the training part; `--part test` trains on the whole
training part and shows the test part, for the setting that was chosen. All replicas of a run learn in one process, as
on a virtual cluster. A cell is the mean over the seeds with half their range, and the difference from the best setting
with one worker, in points (for errors and perplexities in percent). No run starts after `--minutes`. With the setting
"rate by samples" a sequence counts as one label, however many it has.
The setting "sgd, as long" has the epochs that take SGD as long on a CPU as those of the task take Muon, rounded up; the
CPU times of their steps are measured first.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from time import perf_counter, thread_time
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from support.options import make_parser, write_json
from torch import Tensor, nn

from tenfold.data import Splits
from tenfold.engines.one_device import train_replicas
from tenfold.engines.prepare import prepare
from tenfold.errors import TenfoldError, TrainingError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import with_defaults
from tenfold.machine.cores import using_threads
from tenfold.runs.events import Stopwatch
from tenfold.training import Replica, base_lr, choose_loss
from tenfold.workers.task import Resolved, Task, make_network

VALIDATION = 1 / 6
MUON = {"optimizer": "muon", "lr_scaling": "sqrt"}
AS_LONG = "sgd, as long"
BY_SAMPLES = "rate by samples"
EMBEDDED_BY_SGD = {"optimizer_options": {"embeddings": "partner"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    BY_SAMPLES: {},
    f"{BY_SAMPLES}, embeddings by sgd": EMBEDDED_BY_SGD,
    "embeddings by sgd": EMBEDDED_BY_SGD,
    **{f"embeddings {lr:g}": {"optimizer_options": {"embedding_lr": lr}} for lr in (0.001, 0.003, 0.01, 0.03)},
    **{f"rate {lr:g}": {"lr": lr} for lr in (0.0075, 0.015, 0.03, 0.06, 0.12, 0.21, 0.4)},
    "sgd": {"optimizer": "sgd", "lr_scaling": "auto"},
    AS_LONG: {"optimizer": "sgd", "lr_scaling": "auto"},
    "adamw": {"optimizer": "adamw", "lr_scaling": "sqrt"},
    "muon": MUON,
    "muon, momentum averaged": MUON | {"optimizer_state": "average"},
    "muon, gradients averaged": MUON | {"average": "gradients"},
    "muon, linear": MUON | {"schedule": "linear"},
    "muon, gradients, linear": MUON | {"schedule": "linear", "average": "gradients"},
    "muon, output by sgd": MUON | {"optimizer_options": {"output": "partner"}},
    "muon, rate 0.005": MUON | {"lr": 0.005},
    "muon, rate 0.02": MUON | {"lr": 0.02},
    "muon, vectors 0.02": MUON | {"optimizer_options": {"partner_lr": 0.02}},
    "muon, vectors adamw": MUON | {"optimizer_options": {"partner": "adamw"}},
    "muon, momentum 0.95": MUON | {"momentum": 0.95},
    "muon, 5 steps": MUON | {"optimizer_options": {"steps": 5}},
    **{f"blocks of {rows}": {"optimizer_options": {"block": rows}} for rows in (16, 32, 64, 128, 4096)},
    "batch 32": {"batch_size": 32},
    "batch 16": {"batch_size": 16},
    "batch 16, rate 0.015": {"batch_size": 16, "lr": 0.015},
    "batch 16, rate 0.005": {"batch_size": 16, "lr": 0.005},
    "batch 256": {"batch_size": 256},
    "batch 256, rate 0.015": {"batch_size": 256, "lr": 0.015},
    "batch 256, rate 0.02": {"batch_size": 256, "lr": 0.02},
    "sgd, gradients averaged": {"optimizer": "sgd", "lr_scaling": "auto", "average": "gradients"},
    **{
        f"{strategy}, every {sync}": {"strategy": strategy, "sync_every": sync}
        for strategy in ("butterfly", "ring", "hopping-ring")
        for sync in (16, 128)
    },
    **{
        f"{strategy}, every {sync}{', momenta local' if state == 'local' else ''}": {
            "strategy": strategy,
            "sync_every": sync,
            "optimizer_state": state,
        }
        for strategy in ("allreduce", "butterfly", "ring", "hopping-ring")
        for sync in (1, 4)
        for state in ("average", "local")
    },
    **{
        f"{optimizer}, {strategy}, every {sync}": {"optimizer": optimizer, "strategy": strategy, "sync_every": sync}
        | ({"lr_scaling": "sqrt"} if optimizer == "muon" else {})
        for optimizer in ("sgd", "muon")
        for strategy in ("allreduce", "butterfly", "ring", "hopping-ring")
        for sync in (16, 128)
    },
}
USUAL = ["sgd", "muon", "muon, momentum averaged", "muon, gradients averaged"]
ALIKE_ALONE = ("momentum averaged", "gradients averaged", "every")
"""In names of settings that are the plain one where there is one worker."""


def topics(sequences: int = 24_000, length: int = 24, words: int = 500, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Return sequences of word numbers, and the topic that a third of each sequence's words belong to."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (sequences,), generator=generator)
    x = torch.randint(words, (sequences, length), generator=generator)
    own = torch.randint(words // classes, (sequences, length), generator=generator) * classes + y[:, None]
    return torch.where(torch.rand(sequences, length, generator=generator) < 0.2, own, x), y


class TopicTransformer(nn.Module):
    """Embeddings with positions, one block of self-attention and a hidden layer, the mean, and a linear output."""

    def __init__(self, words: int = 500, length: int = 24, width: int = 64, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.hidden = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each topic."""
        z = self.words(x) + self.positions
        inner = self.before(z)
        q, k, v = (
            layer(inner).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        z = z + self.joined((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        z = z + self.hidden(self.between(z))
        return self.output(z.mean(1))  # type: ignore[no-any-return]


def sentences(
    sequences: int = 7_200, length: int = 35, classes: int = 50, words: int = 40, topics: int = 8
) -> tuple[Tensor, Tensor]:
    """Return sequences of word numbers, and the word after each: a language of `classes` x `words` words.

    A word's class follows from the class before it, by a Markov chain. Which word of its class it is follows Zipf's
    law, and in a third of the places the topic of the sequence.
    """
    generator = torch.Generator().manual_seed(0)
    follow = torch.rand(classes, classes, generator=generator) ** 12 / torch.arange(1.0, classes + 1)
    zipf = 1 / torch.arange(1.0, words + 1) ** 1.5
    topic = torch.randint(topics, (sequences,), generator=generator) * (words // topics)
    state = torch.randint(classes, (sequences,), generator=generator)
    text = []
    for _ in range(length + 1):
        state = torch.multinomial(follow[state], 1, generator=generator)[:, 0]
        rank = torch.multinomial(zipf, sequences, replacement=True, generator=generator)
        shifted = torch.where(torch.rand(sequences, generator=generator) < 1 / 3, (rank + topic) % words, rank)
        text.append(shifted * classes + state)
    whole = torch.stack(text, 1)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


class WordLSTM(nn.Module):
    """Embeddings, two LSTM layers, and a score for each word, by weights of their own or by the embeddings."""

    def __init__(self, words: int = 2000, width: int = 200, tied: bool = False) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(words, width), nn.Dropout(0.2)
        self.layers = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.output = nn.Linear(width, words)
        for table in (self.words.weight, self.output.weight):
            nn.init.uniform_(table, -0.1, 0.1)
        if tied:
            self.output.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each word at each place."""
        z, _ = self.layers(self.dropout(self.words(x)))
        return self.output(self.dropout(z))  # type: ignore[no-any-return]


class TiedWordLSTM(WordLSTM):
    """Its output layer has the weights of the embeddings."""

    def __init__(self) -> None:
        super().__init__(tied=True)


def shapes(samples: int = 3000, size: int = 28) -> tuple[Tensor, Tensor]:
    """Return noisy images, and for each pixel whether it is in a disc, a square, a diamond or none of them."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.arange(float(size))
    y = torch.zeros(samples, size, size, dtype=torch.long)
    for kind, distance in enumerate((torch.hypot, torch.maximum, torch.add), start=1):
        column, row, radius = (torch.rand(samples, 1, 1, generator=generator) * 20 + 4 for _ in range(3))
        away = distance((pixels - column).abs(), (pixels[:, None] - row).abs())
        y[away < radius / 5 + 2] = kind
    tones = torch.tensor([0.0, 0.5, 0.8, 1.1])[y]
    return (tones + 0.5 * torch.randn(y.shape, generator=generator))[:, None], y


class PixelCNN(nn.Sequential):
    """Four convolutions, one of them on a coarser grid, and a score for each kind of pixel."""

    def __init__(self) -> None:
        wide, fine = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        first, coarse = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, stride=2)
        up = nn.Upsample(scale_factor=2)
        super().__init__(first, nn.ReLU(), coarse, nn.ReLU(), wide, nn.ReLU(), up, fine, nn.ReLU(), nn.Conv2d(32, 4, 1))


def diabetes() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's table of 442 patients, with standardized targets."""
    x, y = load_diabetes(return_X_y=True)
    targets = torch.tensor(y, dtype=torch.float32)[:, None]
    return torch.tensor(x, dtype=torch.float32) * len(x) ** 0.5, (targets - targets.mean()) / targets.std()


def friedman(samples: int = 20_000) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of Friedman's first function (1991), with noise of deviation 0.3 in 4.9."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y - y.mean()) / y.std() + 0.06 * torch.randn(samples, generator=generator)
    return x - 0.5, y[:, None]


TASKS: dict[str, dict[str, Any]] = {
    "mnist-lenet5": {"model": "lenet5", "data": "mnist", "epochs": 5},
    "fashion-lenet5": {"model": "lenet5", "data": "fashion-mnist", "epochs": 5},
    "mnist-cnn": {"model": "cnn", "data": "mnist", "epochs": 3},
    "fashion-cnn": {"model": "cnn", "data": "fashion-mnist", "epochs": 3},
    "mnist-mlp": {"model": "mlp", "data": "mnist", "epochs": 3},
    "mnist-wide": {"model": "mlp", "hidden": [512, 512], "data": "mnist", "epochs": 3},
    "fashion-wide": {"model": "mlp", "hidden": [1024, 512], "data": "fashion-mnist", "epochs": 3},
    "digits-mlp": {"model": "mlp", "data": "digits", "epochs": 30},
    "fashion-batchnorm": {"model": "lenet5", "batchnorm": True, "data": "fashion-mnist", "epochs": 5},
    "topics-transformer": {"model": TopicTransformer, "data": topics, "epochs": 5},
    "regression": {"model": "mlp", "hidden": [64, 64], "data": friedman, "epochs": 20, "metrics": ["rmse"]},
    "diabetes": {"model": "mlp", "hidden": [64, 64], "data": diabetes, "epochs": 30, "metrics": ["rmse"]},
    "words-lstm": {"model": WordLSTM, "data": sentences, "epochs": 2, "batch_size": 20, "metrics": ["perplexity"]},
    "words-tied": {"model": TiedWordLSTM, "data": sentences, "epochs": 2, "batch_size": 20, "metrics": ["perplexity"]},
    "pixels": {"model": PixelCNN, "data": shapes, "epochs": 4, "batch_size": 16},
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--settings", nargs="+", default=USUAL, choices=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batch-size", type=int, help="of each worker, unless the setting has one; default: as usual")
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--samples", type=int, help="of each part; default: all")
    parser.add_argument("--minutes", type=float, default=math.inf)
    arguments = parser.parse_args()
    results: dict[tuple[str, str, int], list[float]] = {}
    began = perf_counter()
    splits: dict[str, Splits] = {}
    for task, setting, workers, seed in planned(arguments):
        if perf_counter() - began > 60 * arguments.minutes:
            print(f"stopped after {arguments.minutes:g} minutes", flush=True)
            break
        started = perf_counter()
        try:
            value = train(arguments, splits, task, setting, workers, seed)
        except TrainingError:
            value = math.nan  # the loss became infinite
        except (TenfoldError, ImportError) as error:
            print(f"{task}, {setting}, {workers} workers: {error}", file=sys.stderr, flush=True)
            continue
        results.setdefault((task, setting, workers), []).append(value)
        spent = perf_counter() - started
        print(f"{task}, {setting}, {workers} workers, seed {seed}: {show(task, value)} [{spent:.1f} s]", flush=True)
        rows = [{"task": key[0], "setting": key[1], "workers": key[2], "values": v} for key, v in results.items()]
        write_json(arguments.json, rows)
    print_table(arguments, results)
    print(f"{arguments.part} part, {perf_counter() - began:.0f} s")


def planned(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int, int]]:
    """Yield the runs, one seed of everything before the next."""
    for seed in range(arguments.seeds):
        for task in arguments.tasks:
            for workers in arguments.workers:
                for setting in arguments.settings:
                    if workers > 1 or not any(word in setting for word in ALIKE_ALONE):
                        yield task, setting, workers, seed


def train(
    arguments: argparse.Namespace, splits: dict[str, Splits], task: str, setting: str, workers: int, seed: int
) -> float:
    """Train once; return the task's metric on the chosen part."""
    fields = TASKS[task] | ({"batch_size": arguments.batch_size} if arguments.batch_size else {}) | SETTINGS[setting]
    fields |= {"workers": workers, "seed": seed, "limit": arguments.samples}
    if setting.startswith(BY_SAMPLES):
        fields["lr"] = base_lr(with_defaults(Experiment(**fields)).training)
    if arguments.part == "validation":
        fields["validation_fraction"] = VALIDATION
    if setting == AS_LONG:
        ratio = step_ratio(task)
        fields["epochs"] = math.ceil(fields["epochs"] * ratio)
        print(f"{task}: a step of Muon takes {ratio:.2f} times as long; {fields['epochs']} epochs of SGD", flush=True)
    fields |= {"device": arguments.device, "threads": arguments.threads, "oversubscribe": True, "log_every": 10**6}
    made = prepare(Resolved.of(Experiment(**fields)), splits=splits.get(task))
    splits[task] = made.splits
    if arguments.part == "validation":
        made = replace(made, splits=replace(made.splits, test=None))
    outcome = train_replicas(made, Stopwatch(), lambda _: None)
    metrics = outcome.result["metrics"]
    return float(metrics[TASKS[task].get("metrics", ["accuracy"])[0]])


def is_error(task: str) -> bool:
    """Return whether lower values of the task's metric are better."""
    return "metrics" in TASKS[task]


@cache
def step_ratio(task: str, steps: int = 40) -> float:
    """Return the CPU time of a step of Muon in units of that of SGD: one thread, the usual batch, medians."""
    fields = TASKS[task] | {"limit": 256, "threads": 1, "oversubscribe": True}
    made = {name: prepare(Resolved.of(Experiment(**fields, optimizer=name))) for name in ("muon", "sgd")}
    replicas = {name: make_replica(item) for name, item in made.items()}
    times: dict[str, list[float]] = {name: [] for name in replicas}
    with using_threads(1):
        for step in range(steps):
            for name, replica in replicas.items():
                x, y = next(made[name].splits.train.batches([torch.arange(64) + 64 * (step % 3)]))
                began = thread_time()
                replica.step(x, y)
                times[name].append(thread_time() - began)
    return statistics.median(times["muon"]) / statistics.median(times["sgd"])


def make_replica(task: Task) -> Replica:
    loss = choose_loss(task.experiment.training, task.splits.classes)
    return Replica(make_network(task), task.experiment.training, loss, steps_per_epoch=10**6)


def print_table(arguments: argparse.Namespace, results: dict[tuple[str, str, int], list[float]]) -> None:
    columns = "".join(f"{count:>22}" for count in arguments.workers)
    for task in arguments.tasks:
        single = [statistics.fmean(v) for (name, _, workers), v in results.items() if name == task and workers == 1]
        if not any(name == task for name, _, _ in results):
            continue
        best = (min if is_error(task) else max)(single) if single else None
        print(f"\n{task:<48}{columns}   workers")
        for setting in arguments.settings:
            cells = [cell(task, results.get((task, setting, workers)), best) for workers in arguments.workers]
            print(f"  {setting:<46}" + "".join(f"{cell:>22}" for cell in cells))


def cell(task: str, values: list[float] | None, best: float | None) -> str:
    if not values:
        return ""
    mean, spread = statistics.fmean(values), (max(values) - min(values)) / 2
    if is_error(task):
        against = f"{(mean / best - 1) * 100:+.0f}%" if best else ""
        return f"{mean:.4f} ±{spread:.4f} {against}"
    against = f"{(mean - best) * 100:+.2f}" if best else ""
    return f"{mean * 100:.2f} ±{spread * 100:.2f} {against}"


def show(task: str, value: float) -> str:
    return f"{value:.4f}" if is_error(task) else f"{value:.2%}"


if __name__ == "__main__":
    main()
