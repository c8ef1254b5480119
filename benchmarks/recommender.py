"""How well the recommender predicts whom people follow, with settings that were chosen without the test part.

    python benchmarks/recommender.py --json recommender.json

For each split: every setting of the grid is trained on 80% of the training people and judged by its precision at 10 for
the other 20%. The best setting is then trained on all training people with three seeds, and measured
on the test people, beside ridge regression on the same split. The penalty of ridge regression is fixed.
"""

import tempfile
from itertools import product
from typing import Any

from support.options import make_parser, write_json

import tenfold
from tenfold.data import where
from tenfold.papers.recommender import PeopleToFollow

BASE: dict[str, Any] = {
    "model": "recommender",
    "data": "tweets",
    "loss": "bce",
    "metrics": ["precision_at_10"],
    "optimizer": "adamw",
    "schedule": "one-cycle",
    "batch_size": 32,
    "threads": 1,
}
GRID: dict[str, list[Any]] = {"lr": [0.001, 0.003, 0.01], "epochs": [30, 60], "dropout": [0.0, 0.2]}
GOAL = 0.73


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    if where("tweets") is None:
        print("the tweets are not on this machine (docs/data.md says where they belong): nothing to measure")
        return
    found = []
    with tempfile.TemporaryDirectory() as runs:
        for split in arguments.splits:
            found.append(measure(split, runs))
            print(describe(found[-1]), flush=True)
    write_json(arguments.json, found)


def measure(split: int, runs: str) -> dict[str, Any]:
    """Choose a setting by validation, and return its precision on the test part beside ridge regression's."""
    settings = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    validated = [validation_precision(setting, split, runs) for setting in settings]
    chosen = settings[validated.index(max(validated))]
    done = [tenfold.train(**BASE, **chosen, split_seed=split, seed=seed, runs=runs) for seed in range(3)]
    tables = [PeopleToFollow(run).table() for run in done]
    return {
        "split": split,
        "validation": [
            setting | {"precision_at_10": value} for setting, value in zip(settings, validated, strict=True)
        ],
        "chosen": chosen,
        "test": [table[f"run {run.id}"]["precision_at_10"] for run, table in zip(done, tables, strict=True)],
        "ridge": tables[0]["ridge regression"]["precision_at_10"],
    }


def validation_precision(setting: dict[str, Any], split: int, runs: str) -> float:
    """Return the precision at 10 for a fifth of the training people, who were left out of the training."""
    run = tenfold.train(**BASE, **setting, split_seed=split, validation_fraction=0.2, runs=runs)
    return run.history[-1]["validation_precision_at_10"]


def describe(one: dict[str, Any]) -> str:
    """Return the result of a split in a line."""
    chosen = ", ".join(f"{name} {value}" for name, value in one["chosen"].items())
    low, high = min(one["test"]), max(one["test"])
    return (
        f"split {one['split']}: {chosen}; precision at 10 on the test part {low:.3f} to {high:.3f} (goal: {GOAL}), "
        f"ridge regression {one['ridge']:.3f}"
    )


if __name__ == "__main__":
    main()
