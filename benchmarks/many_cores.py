"""What could be gained where a worker per core averages at every step: predicted by the clock, nothing is trained.

    python benchmarks/many_cores.py
    python benchmarks/many_cores.py --profile machine.toml --work lenet5    # with this machine's measured steps

Workers that average at every step wait for the slowest. The spread of their steps is that of a calibrated profile, or a
log-normal one that makes 16 workers as slow as they were measured (`--share`: of the speed of workers that never talk).
These changes are compared with all-reduce at every step:

- steady start: the first epoch takes as long as the others
- waits that yield: a worker that waits leaves its half of a physical core to the worker on the other half, which then
  steps faster (`--sibling`); a wait that spins does not
- partners: butterfly, each round among pairs, so that a slow worker delays one other
- overlapped: each averages with the weights that its partner, or everybody, had published after the step before, and
  waits only for one that is more than one step behind
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.options import make_parser, write_json

from tenfold.cluster.hardware import StepTime
from tenfold.cluster.workload import Pace
from tenfold.prediction.profile import Profile

Floats = NDArray[np.float64]
REPEATS = 8


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=16, help="a power of two")
    parser.add_argument("--steps", type=int, default=1000, help="of the run")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.66, help="measured speed, relative to that without rounds")
    parser.add_argument("--between-workers", type=float, default=0.0, help="spread that stays with a worker")
    parser.add_argument("--round", type=float, default=0.01, help="seconds of a round, relative to a step")
    parser.add_argument("--first-epoch", type=float, default=1.2, help="a step of the first epoch, relative to others")
    parser.add_argument("--sibling", type=float, default=1.33, help="speed beside an idle half of a core")
    parser.add_argument("--profile", type=Path, help="a calibrated profile; default: a log-normal spread")
    parser.add_argument("--work", default="lenet5", help="which steps of the profile: how its name begins")
    arguments = parser.parse_args()
    if arguments.workers & (arguments.workers - 1) or arguments.workers < 2:
        parser.error(f"--workers {arguments.workers}: should be a power of two, at least 2")
    step_time = measured(arguments) if arguments.profile else spread_for(arguments.share, arguments)
    seconds = step_times(step_time, arguments)
    found = table(seconds, arguments)
    base = found["all-reduce at every step"]
    print(f"{arguments.workers} workers, {arguments.steps} steps, {REPEATS} draws; {about(step_time)}")
    for name, share in found.items():
        print(f"{name:<52}{share:6.0%} of the limit{share / base - 1:+8.1%}")
    write_json(arguments.json, found)


def table(seconds: Floats, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the speed of each variant, as a share of that of workers that never talk after a steady start."""
    price, sibling = arguments.round * seconds.mean(), arguments.sibling
    slow = slow_start(seconds, arguments)
    limit = float(seconds.sum(axis=1).mean())
    times = {
        "no rounds": float(slow.sum(axis=1).mean()),
        "all-reduce at every step": together(slow, price),
        "a) steady start": together(seconds, price),
        "b) waits that yield": together(slow, price, sibling),
        "butterfly at every step": partners(slow, price, staleness=0),
        "c) butterfly, overlapped, a staleness of one": partners(slow, price, staleness=1),
        "c) all-reduce, overlapped, a staleness of one": overlapped_together(slow, price),
        "a) and b)": together(seconds, price, sibling),
        "a) and c)": partners(seconds, price, staleness=1),
    }
    return {name: limit / one for name, one in times.items()}


def together(seconds: Floats, price: float, sibling: float = 1.0) -> float:
    """Return the seconds of a run whose workers all wait for each other at every step.

    Workers 2k and 2k+1 are on one physical core. The later of them takes the rest of its step at the speed `sibling`.
    """
    pairs = seconds.reshape(*seconds.shape[:2], -1, 2)
    first, last = pairs.min(axis=3), pairs.max(axis=3)
    return float((first + (last - first) / sibling).max(axis=2).sum(axis=1).mean()) + price * seconds.shape[1]


def partners(seconds: Floats, price: float, *, staleness: int) -> float:
    """Return the seconds of a run in which each worker averages with one other, 1, 2, 4, ... places away in turn.

    end_i(t) = max(end_i(t-1) + Y_i(t), end_j(t - staleness) without its own round) + price.
    """
    repeats, steps, workers = seconds.shape
    ends = [np.zeros((repeats, workers)) for _ in range(staleness + 1)]
    """When the last steps were done, the latest last."""
    rank, rounds = np.arange(workers), int(math.log2(workers))
    for step in range(steps):
        ready = ends[-1] + seconds[:, step]
        partner = rank ^ (1 << step % rounds)
        published = ready if staleness == 0 else ends[-staleness]
        ends = [*ends[1:], np.maximum(ready, published[:, partner]) + price]
    return float(ends[-1].max(axis=1).mean())


def overlapped_together(seconds: Floats, price: float) -> float:
    """Return the seconds of a run in which each worker needs what all others had after the step before.

    end_i(t) = max(end_i(t-1) + Y_i(t), max over j of end_j(t-1)) + price.
    """
    ends = np.zeros((seconds.shape[0], seconds.shape[2]))
    for step in range(seconds.shape[1]):
        ends = np.maximum(ends + seconds[:, step], ends.max(axis=1, keepdims=True)) + price
    return float(ends.max(axis=1).mean())


def slow_start(seconds: Floats, arguments: argparse.Namespace) -> Floats:
    slow = seconds.copy()
    slow[:, : arguments.steps // arguments.epochs] *= arguments.first_epoch
    return slow


def step_times(step_time: StepTime, arguments: argparse.Namespace) -> Floats:
    """Return drawn step times [repeats, steps, workers]."""
    pace = Pace([step_time] * arguments.workers, REPEATS, np.random.default_rng(0))
    return pace.draw(arguments.steps)


def measured(arguments: argparse.Namespace) -> StepTime:
    profile = Profile.load(arguments.profile)
    known = [step for step in profile.steps if step.work.startswith(arguments.work) and step.threads == 1]
    if not known:
        raise SystemExit(f"{arguments.profile} has no steps of {arguments.work} with one thread")
    nearest = min(known, key=lambda step: abs(math.log(step.workers / arguments.workers)))
    return profile.step_time(nearest.work, nearest.batch_size, 1, nearest.workers)


def spread_for(share: float, arguments: argparse.Namespace) -> StepTime:
    """Return log-normal steps whose slowest of all workers makes a run reach this share of the limit."""
    low, high, persistent = 0.0, 1.5, arguments.between_workers
    for _ in range(30):
        middle = (low + high) / 2
        seconds = step_times(StepTime(mean=1.0, between_steps=middle, between_workers=persistent), arguments)
        slow = slow_start(seconds, arguments)
        reached = float(slow.sum(axis=1).mean()) / together(slow, arguments.round)
        low, high = (middle, high) if reached > share else (low, middle)
    return StepTime(mean=1.0, between_steps=middle, between_workers=persistent)


def about(step_time: StepTime) -> str:
    if step_time.trace is not None:
        return f"steps of {step_time.mean * 1e3:.2f} ms as measured"
    return f"log-normal spread: steps {step_time.between_steps:.0%}, workers {step_time.between_workers:.0%}"


if __name__ == "__main__":
    main()
