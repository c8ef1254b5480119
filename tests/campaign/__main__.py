"""Attacks Tenfold with seeded faults, and checks after each that its promises hold.

    python tests/campaign                           all kinds in turn, for 30 minutes
    python tests/campaign --minutes 5 --seed 3      a shorter campaign with other faults
    python tests/campaign --seed 3 --only kill:12   one attempt again
    python tests/campaign --kinds kill,flip --turns 1 --most 2

Prints how many attempts of each kind were tried, held and fell, and writes those that fell to a JSON file with the
command that repeats each. Exits with 1 if any fell. A fault that cannot be made here is skipped with a reason.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import foreign_faults
import input_faults
import network_faults
import process_faults
import rank_faults
import storage_faults
from attempt import Attempt, Fault, Fell, Skipped

KINDS: dict[str, tuple[Fault, int]] = {
    "file": (input_faults.file, 20),
    "command": (input_faults.command, 20),
    "data": (input_faults.data, 8),
    "model": (input_faults.model, 8),
    "foreign": (foreign_faults.foreign, 8),
    "flip": (storage_faults.flip, 4),
    "kill": (process_faults.kill, 4),
    "stop": (process_faults.stop, 2),
    "pause": (process_faults.pause, 2),
    "term": (process_faults.term, 2),
    "lock": (process_faults.lock, 1),
    "rank": (rank_faults.rank, 2),
    "differ": (rank_faults.differ, 2),
    "backend": (rank_faults.backend, 2),
    "cut": (network_faults.cut, 1),
    "disk": (storage_faults.disk, 2),
    "full": (storage_faults.full, 1),
    "readonly": (storage_faults.readonly, 1),
    "fuse": (storage_faults.fuse, 1),
    "deadlock": (process_faults.deadlock, 1),
    "replace": (process_faults.replace, 2),
    "clock": (storage_faults.clock, 1),
    "host": (storage_faults.host, 1),
}
"""Each kind of fault, the quickest first, and how many of it there are in one turn through all kinds."""


@dataclass
class Tally:
    """What came of the attempts of one kind."""

    tried: int = 0
    held: int = 0
    skipped: str = ""
    fell: list[dict[str, str]] = field(default_factory=list)


def main() -> None:
    """Run the campaign."""
    options = _options()
    _import_once()
    tallies = {kind: Tally() for kind in options.kinds}
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        if options.only:
            kind, _, number = options.only.partition(":")
            tallies = {kind: Tally()}
            _attempt(kind, int(number), options.seed, Path(folder), tallies[kind])
        turn = 0
        while not options.only and time.monotonic() < until and turn < options.turns:
            for kind, number in _one_turn(turn, options):
                if time.monotonic() < until and not tallies[kind].skipped:
                    _attempt(kind, number, options.seed, Path(folder), tallies[kind])
            turn += 1
    _print(tallies)
    fell = [item for tally in tallies.values() for item in tally.fell]
    Path(options.json).write_text(json.dumps(fell, indent=2) + "\n")
    if fell:
        print(f"\nwhat fell is in {options.json}")
    sys.exit(1 if fell else 0)


def _one_turn(turn: int, options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the attempts of a turn: one of each kind first, so that a slow machine also tries all kinds."""
    counts = {kind: min(KINDS[kind][1], options.most) for kind in options.kinds}
    attempts = [(number, kind) for kind in options.kinds for number in range(counts[kind])]
    attempts.sort(key=lambda attempt: attempt[0])
    return [(kind, turn * counts[kind] + number) for number, kind in attempts]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--turns", type=int, default=10**9, help="how often to go through all kinds")
    parser.add_argument("--most", type=int, default=10**9, help="attempts of a kind in each turn, at most")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--only", help="one attempt, such as kill:12")
    parser.add_argument("--json", default="campaign.json", help="where to write what fell")
    options = parser.parse_args()
    unknown = {*options.kinds, (options.only or "kill").partition(":")[0]} - set(KINDS)
    if unknown:
        parser.error(f"unknown kind {min(unknown)!r}; known: {', '.join(KINDS)}")
    return options


def _import_once() -> None:
    """Import what the forks of this process would each import."""
    import sklearn.datasets  # noqa: F401
    import torch

    import tenfold
    import tenfold.cli
    import tenfold.engines.processes
    import tenfold.reports.progress
    import tenfold.reports.summary

    torch.set_num_threads(1)
    assert tenfold.train


def _attempt(kind: str, number: int, seed: int, folder: Path, tally: Tally) -> None:
    attempt = Attempt(kind, number, seed, folder)
    began = time.monotonic()
    outcome = "held"
    try:
        KINDS[kind][0](attempt)
    except Skipped as skipped:
        tally.skipped = str(skipped)
        print(f"{kind}:{number} skipped: {skipped}", flush=True)
        return
    except Fell as fell:
        outcome = str(fell)
    except Exception:
        outcome = f"the campaign itself failed: {traceback.format_exc()}"
    finally:
        attempt.remove()
    tally.tried += 1
    if outcome == "held":
        tally.held += 1
        return
    command = f"python tests/campaign --seed {seed} --only {kind}:{number}"
    tally.fell.append({"kind": kind, "number": str(number), "what": outcome, "command": command})
    print(f"{kind}:{number} fell after {time.monotonic() - began:.1f} s: {outcome}", flush=True)


def _print(tallies: dict[str, Tally]) -> None:
    print(f"\n{'kind':10} {'tried':>6} {'held':>6} {'fell':>6}")
    for kind, tally in tallies.items():
        note = f"  skipped: {tally.skipped}" if tally.skipped else ""
        print(f"{kind:10} {tally.tried:6} {tally.held:6} {len(tally.fell):6}{note}")
    total = [sum(values) for values in zip(*((t.tried, t.held, len(t.fell)) for t in tallies.values()), strict=True)]
    print(f"{'all':10} {total[0]:6} {total[1]:6} {total[2]:6}")


if __name__ == "__main__":
    main()
