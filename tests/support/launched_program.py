"""What ranks run under a launcher in the tests: experiments from a file, one after another, and what came of each."""

import ctypes
import hashlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from engine_models import Failing

import tenfold
from tenfold.launchers import detect_world


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


def start_rank(folder: str, environment: dict[str, str], namespace: str = "", command: Sequence[str] = ()) -> None:
    """Do the same, or what a command of tenfold does, as a rank that no launcher had to start, on a host of its own."""
    if namespace:
        enter_host(namespace, environment["HOST"])
    os.environ.update(environment)
    with Path(folder, f"output-{environment['RANK']}").open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    if not command:
        start(folder)
        return
    from tenfold.cli import main

    torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = ["tenfold", *command]
    main()


def run_script(path: str) -> None:
    """Run a program of one's own as this rank."""
    runpy.run_path(path, run_name="__main__")


def enter_host(namespace: str, name: str) -> None:
    """Move this process to a network namespace, and give its host another name."""
    system = ctypes.CDLL(None, use_errno=True)
    new_network, new_name = 0x40000000, 0x04000000
    with Path("/run/netns", namespace).open() as file:
        if system.setns(file.fileno(), new_network) or system.unshare(new_name):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
    socket.sethostname(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
