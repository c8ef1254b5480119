"""A model divided among workers against one process, and against what was predicted: in turns, medians.

    python benchmarks/model_parallel.py --turns 5 --json model_parallel.json

`cnn` on MNIST, batches of 64, one thread per worker. By layers, the one process computes the same pieces
(`accumulate` = `micro_batches`) and ends with the same weights. The bound of p stages with m micro-batches is
p x balance x m / (m + p - 1); balance is that of the seconds that the stages computed in these runs.
"""

import statistics
import tempfile
from collections import defaultdict
from typing import Any

from support.options import make_parser, write_json

import tenfold
from tenfold.mixing.round import balance, bound
from tenfold.runs.events import Event, Span

COMPUTING = ("data", "compute", "communicate")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--samples", type=int, default=3840)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    base: dict[str, Any] = {"model": "cnn", "data": "mnist", "limit": arguments.samples, "epochs": 1, "threads": 1}
    base |= {"batch_size": 64, "evaluate_every": 1.0}
    several = {"workers": arguments.workers}
    pipeline = several | {"divide": "layers", "micro_batches": arguments.micro_batches}
    settings = {
        "one process": {},
        "one process, pieces": {"accumulate": arguments.micro_batches},
        "data": several,
        "layers": pipeline,
        "neurons": several | {"divide": "neurons"},
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    busy: list[list[float]] = []
    with tempfile.TemporaryDirectory() as runs:
        for _ in range(arguments.turns):
            for name, fields in settings.items():
                if "divide" in fields:
                    forecast = tenfold.forecast(**base, **fields, cluster="here", progress=False)
                    predicted[name].append(forecast.forecasts[0].prediction.seconds)
                events: list[Event] = []
                run = tenfold.train(**base, **fields, runs=runs, progress=False, listen=events.append)
                seconds[name].append(run.seconds or 0.0)
                if name == "layers":
                    busy.append(_computed(events, arguments.workers))
    stages = [statistics.median(turn) for turn in zip(*busy, strict=True)]
    report(seconds, predicted, stages, arguments.micro_batches)
    write_json(arguments.json, {"seconds": seconds, "predicted": predicted, "stages": stages})


def _computed(events: list[Event], workers: int) -> list[float]:
    """Return the seconds that each worker computed and copied."""
    spans = [event for event in events if isinstance(event, Span) and event.kind in COMPUTING]
    return [sum(span.seconds for span in spans if span.worker == worker) for worker in range(workers)]


def report(
    seconds: dict[str, list[float]], predicted: dict[str, list[float]], stages: list[float], micro_batches: int
) -> None:
    alone = statistics.median(seconds["one process"])
    print(f"{'setting':22}{'seconds':>9}  {'from-to':14}{'speedup':>8}{'predicted':>11}{'error':>8}")
    for name, measured in seconds.items():
        median = statistics.median(measured)
        line = f"{name:22}{median:9.2f}  {min(measured):.2f}-{max(measured):<8.2f} {alone / median:8.2f}"
        if name in predicted:
            forecast = statistics.median(predicted[name])
            line += f"{forecast:11.2f}{forecast / median - 1:+8.0%}"
        print(line)
    limit = bound(stages, micro_batches)
    reached = statistics.median(seconds["one process, pieces"]) / statistics.median(seconds["layers"])
    print(
        f"layers: {reached:.2f}x one process with the same pieces; balance {balance(stages):.0%}, bound {limit:.2f}x, "
        f"reached {reached / limit:.0%}"
    )


if __name__ == "__main__":
    main()
