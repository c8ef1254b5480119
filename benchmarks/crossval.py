"""Times cross-validation of LeNet-5 on MNIST, 10 folds of 1 epoch, on all cores: Tenfold against two other ways.

    pip install skorch
    python benchmarks/crossval.py --json crossval.json

- tenfold: folds over workers, as many at once as there are cores
- in turn: the same folds one after another, each with all cores as threads
- skorch: scikit-learn's cross_validate with a skorch network, joblib's n_jobs = cores
The same folds, network, batch, optimizer and learning rate; all are asked for training and validation accuracies, and
all take turns after one that does not count. The time is that of the whole call, which for Tenfold includes loading the
data, recording, and evaluating the test part. Memory is the peak of the proportional set size (PSS) of the process and
all below it, measured in a process of its own for each way and number of folds.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from support.turns import spread, take_turns

import tenfold
from tenfold import data
from tenfold.experiment import Model
from tenfold.machine import cores
from tenfold.models.networks import build

BATCH, RATE, MOMENTUM, SEED = 64, 0.02, 0.9, 0
SAMPLE_SECONDS = 0.1


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, help="use fewer samples, for a quick try")
    parser.add_argument("--memory-folds", type=int, nargs="*", default=[2, 10], help="numbers of folds to weigh")
    parser.add_argument("--alone", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        WAYS[arguments.alone](arguments.folds, arguments.limit)
        return
    ways = list(WAYS)
    try:
        import skorch  # noqa: F401
    except ImportError:
        ways.remove("skorch")
        print("skorch is left out; to compare with it: pip install skorch")
    for name in ways:
        WAYS[name](2, 1000)
    results = {
        "cores": cores.budget(),
        "folds": arguments.folds,
        "seconds": take_turns(
            {name: partial(seconds_of, name, arguments.folds, arguments.limit) for name in ways}, arguments.repeats
        ),
        "peak_pss": {
            name: {str(folds): peak_memory(name, folds, arguments.limit) for folds in arguments.memory_folds}
            for name in ways
        },
    }
    show(results)
    write_json(arguments.json, results)


def ours(folds: int, limit: int | None, **fields: Any) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        done = tenfold.cross_validate(
            model="lenet5",
            data="mnist",
            epochs=1,
            batch_size=BATCH,
            optimizer="sgd",
            lr=RATE,
            momentum=MOMENTUM,
            schedule="constant",
            folds=folds,
            split_seed=SEED,
            limit=limit,
            runs=folder,
            **fields,
        )
        return done.accuracies


def in_turn(folds: int, limit: int | None) -> list[float]:
    return ours(folds, limit, fold_mode="fold-by-fold")


def with_skorch(folds: int, limit: int | None) -> list[float]:
    from sklearn.model_selection import StratifiedKFold, cross_validate
    from skorch import NeuralNetClassifier

    train = data.load("mnist", limit=limit).train
    x, y = train.x.numpy(), train.y.numpy()  # type: ignore[attr-defined]
    network = NeuralNetClassifier(
        make_lenet5,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=MOMENTUM,
        lr=RATE,
        batch_size=BATCH,
        max_epochs=1,
        iterator_train__shuffle=True,
        iterator_valid__batch_size=512,
        train_split=None,
        verbose=0,
    )
    cut = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    found = cross_validate(
        network, x, y, cv=cut, scoring="accuracy", n_jobs=cores.budget(), return_train_score=True, error_score="raise"
    )
    return list(np.asarray(found["test_score"]))


def make_lenet5() -> torch.nn.Module:
    return build(Model(name="lenet5"), (1, 28, 28), 10, seed=SEED)


WAYS: dict[str, Callable[[int, int | None], list[float]]] = {
    "tenfold": ours,
    "in turn": in_turn,
    "skorch": with_skorch,
}


def seconds_of(name: str, folds: int, limit: int | None) -> float:
    start = time.perf_counter()
    accuracies = WAYS[name](folds, limit)
    seconds = time.perf_counter() - start
    print(f"{name}: {seconds:.1f} s, accuracy {statistics.fmean(accuracies):.4f}", file=sys.stderr)
    return seconds


def peak_memory(name: str, folds: int, limit: int | None) -> int:
    """Return the largest sum of PSS, in bytes, that a process and its descendants come to."""
    command = [sys.executable, __file__, "--alone", name, "--folds", str(folds)]
    process = subprocess.Popen(command + ([] if limit is None else ["--limit", str(limit)]))
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    return peak


def tree_memory(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):  # it has just ended
        root = psutil.Process(pid)
        for member in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += member.memory_full_info().pss
    return total


def show(results: dict[str, Any]) -> None:
    weighed = sorted({folds for of_way in results["peak_pss"].values() for folds in of_way}, key=int)
    table = Table(
        "way", "seconds: median, quartiles", "Tenfold is faster by", *(f"peak MiB, {folds} folds" for folds in weighed)
    )
    ours_ = results["seconds"]["tenfold"]
    for name, listed in results["seconds"].items():
        ratios = [theirs / mine for theirs, mine in zip(listed, ours_, strict=True)]
        table.add_row(
            name,
            spread(listed, ".1f"),
            spread(ratios, ".2f", "x") if name != "tenfold" else "",
            *(f"{results['peak_pss'][name][folds] / 2**20:,.0f}" for folds in weighed),
        )
    console = Console(width=120)
    console.print(f"LeNet-5 on MNIST, {results['folds']} folds, {results['cores']} cores")
    console.print(table)


if __name__ == "__main__":
    main()
