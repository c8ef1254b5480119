"""What ranks run under a launcher in the tests: experiments from a file, one after another, and what came of each."""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from engine_models import Failing

import tenfold
from tenfold.launch.detect import detect_world


class FailingOnce(Failing):
    """Fails only before the launcher has restarted the ranks."""

    def _fail(self) -> None:
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            super()._fail()


def digest(run: tenfold.Run) -> str:
    return hashlib.sha256(b"".join(run.weights[name].numpy().tobytes() for name in sorted(run.weights))).hexdigest()


def main(folder: Path) -> None:
    world = detect_world()
    assert world is not None
    for number, fields in enumerate(json.loads((folder / "experiments.json").read_text())):
        run = tenfold.train(runs=folder / "runs", **fields)
        told = {"rank": world.rank, "id": run.id, "accuracy": run.accuracy, "weights": digest(run)}
        (folder / f"told-{number}-{world.rank}.json").write_text(json.dumps(told))


def start(folder: str) -> None:
    """Do the same in a process that was forked for it."""
    torch.set_num_threads(1)
    os.chdir(folder)
    main(Path(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
