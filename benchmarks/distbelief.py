"""DistBelief's comparison (Dean et al. 2012, figures 4 and 5): seconds to an accuracy by the number of workers.

    python benchmarks/distbelief.py --json distbelief.json --plot distbelief.png
    python benchmarks/distbelief.py --data digits --workers 1 4 16 64 --repeats 1

- downpour: Downpour with Adagrad on the servers, one for every 8 workers
- synchronous: gradients averaged at every step, SGD with momentum
- sandblaster: L-BFGS on all data, divided among the workers

All train `mlp` until the test part reaches --target. With --real workers that is measured on this machine's cores, in
turns, beside what is predicted for this machine, and Sandblaster is compared with torch.optim.LBFGS in one process: the
loss of all training samples after the same iterations, and the seconds of both. With --workers it is predicted for
nodes of one core each, joined by --link, with Downpour's servers on nodes of their own: the replicas of downpour and
synchronous learn, and the clock predicts their seconds; the iterations of sandblaster are the same for any number of
workers, so they are counted once. A side that does not reach the target in --epochs has no time. A busy
machine spoils both clocks: leave it alone meanwhile.
"""

import math
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from support.options import make_parser, write_json
from torch import Tensor, nn

import tenfold
from tenfold.engines.prepare import resolve
from tenfold.experiment import Experiment
from tenfold.machine.cores import using_threads
from tenfold.workers.task import Task, make_network

SIDES: dict[str, dict[str, Any]] = {
    "downpour": {"strategy": "downpour", "optimizer": "sgd", "momentum": 0.0, "lr": 0.05, "schedule": "constant"},
    "synchronous": {"strategy": "allreduce", "optimizer": "sgd", "schedule": "constant"},
    "sandblaster": {"optimizer": "sandblaster-lbfgs"},
}
SERVED = 8
"""Workers for each of Downpour's servers."""
EPOCHS_OF_LBFGS = 5
"""An epoch of L-BFGS is one step, so that it may have so many times as many."""
Row = dict[str, Any]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", choices=["digits", "mnist"], default="mnist")
    parser.add_argument("--limit", type=int, help="training samples; default: all")
    parser.add_argument("--target", type=float, default=0.93)
    parser.add_argument("--epochs", type=int, default=20, help="the most; five times as many for Sandblaster")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--link", default="10gbe")
    parser.add_argument("--real", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30, help="of the comparison with torch.optim.LBFGS; 0: none")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    base: Row = {"model": "mlp", "data": options.data, "limit": options.limit, "threads": 1}
    figures: dict[str, Any] = {name: getattr(options, name) for name in ("data", "limit", "target", "link")}
    with tempfile.TemporaryDirectory() as runs:
        if options.iterations:
            figures["torch"] = compare_with_torch(base, options.iterations, options.real, options.repeats, runs)
        aim = base | {"target": options.target, "runs": runs, "progress": False}
        figures["measured"] = [
            row("measured", side, n, measure(side, n, options.epochs, aim))
            for _ in range(options.repeats)
            for n in options.real
            for side in SIDES
        ]
        iterations = count_iterations(options.epochs, aim) if options.workers or options.real else None
        for clock, counts, nodes in (
            ("predicted here", options.real, {"cluster": "here"}),
            ("predicted", options.workers, {"link": options.link}),
        ):
            virtual = {"engine": "virtual"} | nodes
            figures[clock] = [
                row(
                    clock,
                    side,
                    n,
                    predict_iterations(iterations, n, base | virtual)
                    if side == "sandblaster"
                    else measure(side, n, options.epochs, aim | virtual),
                )
                for n in counts
                for side in SIDES
            ]
    show(figures)
    write_json(options.json, figures)
    if options.plot:
        plot(figures, options.plot)


def row(clock: str, side: str, workers: int, seconds: float | None) -> Row:
    """Return a figure, and print it, as it may take long until the next."""
    told = "the target was not reached" if seconds is None else f"{seconds:.3g} s"
    print(f"{clock}: {side}, {workers} workers: {told}", flush=True)
    return {"side": side, "workers": workers, "seconds": seconds}


def fields_of(side: str, workers: int, epochs: int) -> Row:
    fields = SIDES[side] | {"workers": workers, "epochs": epochs}
    if side == "downpour":
        fields["strategy_options"] = {"servers": -(-workers // SERVED)}
    if side == "sandblaster":
        fields["epochs"] = EPOCHS_OF_LBFGS * epochs
    return fields


def measure(side: str, workers: int, epochs: int, fields: Row) -> float | None:
    """Return the training seconds until the target, by the clock of the engine; None where it is not reached."""
    seconds: float | None = tenfold.train(**fields | fields_of(side, workers, epochs)).result.get("seconds_to_target")
    return seconds


def count_iterations(epochs: int, fields: Row) -> int | None:
    """Return after how many iterations L-BFGS reaches the target; None where it does not."""
    run = tenfold.train(**fields | fields_of("sandblaster", 1, epochs))
    return len(run.history) if run.result.get("seconds_to_target") is not None else None


def predict_iterations(iterations: int | None, workers: int, fields: Row) -> float | None:
    """Return the predicted seconds of Sandblaster's iterations."""
    if iterations is None:
        return None
    forecast = tenfold.forecast(**fields | fields_of("sandblaster", workers, 1) | {"epochs": iterations})
    return forecast.forecasts[0].prediction.seconds


def compare_with_torch(base: Row, iterations: int, counts: list[int], repeats: int, runs: str) -> list[Row]:
    """Return loss and seconds of torch's L-BFGS in one process with one thread, and of Sandblaster, in turns."""
    resolved = resolve(Experiment(**base))
    task = resolved.engine.prepare(resolved)
    found = []
    for _ in range(repeats):
        loss, seconds = train_by_torch(task, iterations)
        found.append({"who": "torch.optim.LBFGS", "loss": loss, "seconds": seconds})
        for n in counts:
            fields = base | {"workers": n, "epochs": iterations, "optimizer": "sandblaster-lbfgs", "runs": runs}
            run = tenfold.train(**fields, progress=False)
            network = make_network(task)
            network.load_state_dict(run.weights)
            with torch.no_grad():
                loss = float(loss_of(task, network))
            found.append({"who": f"sandblaster, {n} workers", "loss": loss, "seconds": run.seconds})
    return found


def loss_of(task: Task, network: nn.Module) -> Tensor:
    """Return the mean loss of all training samples."""
    part = task.splits.train
    [(x, y)] = part.batches([torch.arange(len(part))])
    with using_threads(1):
        return nn.functional.cross_entropy(network(x), y)


def train_by_torch(task: Task, iterations: int) -> tuple[float, float]:
    """Return the loss that torch's L-BFGS reaches on all data with the same network, and its seconds."""
    network = make_network(task)
    lbfgs = torch.optim.LBFGS(
        network.parameters(),
        1.0,
        max_iter=iterations,
        max_eval=26 * iterations,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = loss_of(task, network)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with using_threads(1):
        closure()
        began = perf_counter()
        lbfgs.step(closure)  # type: ignore[no-untyped-call]
        seconds = perf_counter() - began
    return float(loss_of(task, network).detach()), seconds


def show(figures: dict[str, Any]) -> None:
    """Print the figures; repeated ones as a median with the smallest and the largest."""
    console = Console()
    if figures.get("torch"):
        table = Table("", "loss", "seconds", "ratio", title="the same iterations of L-BFGS, measured")
        reference = _median(figures["torch"], "who", "torch.optim.LBFGS")
        for who in dict.fromkeys(figure["who"] for figure in figures["torch"]):
            loss = next(figure["loss"] for figure in figures["torch"] if figure["who"] == who)
            middle = _median(figures["torch"], "who", who)
            table.add_row(who, f"{loss:.5f}", _spread(figures["torch"], "who", who), f"{middle / reference:.2f}")
        console.print(table)
    for clock in ("measured", "predicted here", "predicted"):
        table = Table("workers", *SIDES, title=f"seconds to {figures['target']:.0%}, {clock}")
        for n in dict.fromkeys(figure["workers"] for figure in figures[clock]):
            rows = [figure for figure in figures[clock] if figure["workers"] == n]
            table.add_row(str(n), *(_spread(rows, "side", side) for side in SIDES))
        console.print(table)
    if figures["predicted"]:
        console.print(crossover_sentence(figures["predicted"]))


def crossover_sentence(predicted: list[Row]) -> str:
    """Return from how many workers on Sandblaster is predicted to be faster than each other side."""
    told = []
    for side in ("downpour", "synchronous"):
        first = crossover(predicted, side)
        told.append(f"{side} {'at no number of workers' if first is None else f'from {first} workers on'}")
    return f"Sandblaster is predicted to be faster than {', and than '.join(told)}."


def crossover(predicted: list[Row], other: str) -> int | None:
    """Return the least number of workers from which on Sandblaster is faster than another side, as far as predicted.

    A side that does not reach the target counts as slower than one that does.
    """
    first = None
    for n in sorted({figure["workers"] for figure in predicted}, reverse=True):
        seconds = {figure["side"]: figure["seconds"] for figure in predicted if figure["workers"] == n}
        if seconds["sandblaster"] is None or seconds["sandblaster"] >= (seconds[other] or math.inf):
            break
        first = n
    return first


def _seconds(rows: list[dict[str, Any]], key: str, value: str) -> list[float]:
    return sorted(row["seconds"] for row in rows if row[key] == value and row["seconds"] is not None)


def _median(rows: list[dict[str, Any]], key: str, value: str) -> float:
    return statistics.median(_seconds(rows, key, value))


def _spread(rows: list[dict[str, Any]], key: str, value: str) -> str:
    found = _seconds(rows, key, value)
    if not found:
        return "not reached"
    middle = f"{statistics.median(found):.3g}"
    return middle if len(found) == 1 else f"{middle} [{found[0]:.3g}-{found[-1]:.3g}]"


def plot(figures: dict[str, Any], path: Path) -> None:
    """Draw seconds by workers, both on logarithmic scales: lines are predicted, crosses measured."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for side, marker in zip(SIDES, "osD", strict=True):
        rows = [item for item in figures["predicted"] if item["side"] == side and item["seconds"] is not None]
        workers, seconds = ([item[key] for item in rows] for key in ("workers", "seconds"))
        (line,) = axes.plot(workers, seconds, marker=marker, label=f"{side}, predicted")
        real = [item for item in figures["measured"] if item["side"] == side]
        for n in dict.fromkeys(item["workers"] for item in real):
            found = _seconds([item for item in real if item["workers"] == n], "side", side)
            if found:
                axes.plot(n, statistics.median(found), "x", ms=9, mew=2, color=line.get_color())
    for other, style in (("downpour", "--"), ("synchronous", ":")):
        first = crossover(figures["predicted"], other)
        if first is not None:
            axes.axvline(first, color="gray", ls=style, lw=1, label=f"Sandblaster beats {other}")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel=f"seconds to {figures['target']:.0%} accuracy")
    axes.set_xticks(sorted({item["workers"] for item in figures["predicted"]}))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    title = f"mlp on {figures['data']}, {figures['link']}, one core per worker"
    axes.set_title(title + ("; x: measured here" if figures["measured"] else ""), fontsize="medium")
    axes.legend(frameon=False, fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
