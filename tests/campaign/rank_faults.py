"""Ranks that are killed, stopped or spied on at a random moment, or that do not train the same."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from attempt import LIMIT, LOSS_LIMIT, SOURCES, Attempt, Command, Fell, Said

LAUNCHERS = ("torchrun", "mpirun")
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def rank(attempt: Attempt) -> None:
    """SIGKILL or SIGSTOP to a rank; all ranks end, and the run is resumed if it had begun."""
    number = attempt.random.choice([signal.SIGKILL, signal.SIGSTOP])
    delay = attempt.random.uniform(0, 2 * attempt.seconds())
    wrapper = launcher(attempt.random.choice(LAUNCHERS))
    with attempt.started("train", str(attempt.write_experiment()), "--quiet", wrapper=wrapper) as command:
        began = time.monotonic()
        targets: list[psutil.Process] = []
        while command.process.poll() is None and (time.monotonic() - began < delay or not targets):
            command.family()
            targets = _ranks(command)
            time.sleep(0.01)
        target = attempt.random.choice(targets) if targets else None
        if target is not None:
            with contextlib.suppress(psutil.Error):
                target.send_signal(number)
        try:
            said = command.wait(LOSS_LIMIT + 2 * attempt.seconds())
        except Fell as fell:
            finished = number == signal.SIGSTOP and all(run["status"] == "finished" for run in attempt.runs())
            if not finished or target is None:
                raise Fell(f"{number.name} to a rank {delay:.1f} s after the start of {wrapper[0]}: {fell}") from None
            target.send_signal(signal.SIGCONT)  # all work was done: only the launcher waits for it
            said = command.wait(LOSS_LIMIT)
    _check(said, number)
    attempt.finish()


DIFFERENT = """
import os
import sys

rank = next(os.environ[name] for name in {variables} if name in os.environ)
own = {own}[int(rank)]
os.chdir(own["folder"])
os.execv(sys.argv[1], [*sys.argv[1:], *own["options"]])
"""
MODEL = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Linear(shape[0], {hidden}), nn.{activation}(), nn.Linear({hidden}, outputs))
"""
DIFFERENCES = {
    "training.lr": {"options": ["--set=lr=0.02"]},
    "training.seed": {"options": ["--set=seed=5"]},
    "data.distribute": {"options": ["--set=distribute=scatter"]},
    "training.epochs": {"options": ["--set=epochs=3"]},
    "model's": {"hidden": 9},
    "source code of nets": {"activation": "ReLU"},
    "fingerprint of the data": {"labels": "ba"},
    "samples for train": {"samples": 90},
}
"""What another rank has otherwise, by what the error must name."""


def differ(attempt: Attempt) -> None:
    """A rank has another experiment, other data or code; all end before the first step, and nothing is recorded."""
    names = attempt.random.sample(sorted(DIFFERENCES), attempt.random.choice([0, 1, 1, 1, 2]))
    odd = attempt.random.randrange(2)
    own = [_write_host(attempt.folder / f"host{rank}", names if rank == odd else []) for rank in range(2)]
    program = attempt.folder / "different.py"
    program.write_text(DIFFERENT.format(variables=RANK_VARIABLES, own=own))
    wrapper = [*launcher(attempt.random.choice(LAUNCHERS)), sys.executable, str(program)]
    fields = ["epochs=2", "lr=0.01", "batch_size=8", "threads=1", "oversubscribe=true"]
    command = [
        "train",
        "--data",
        "table.csv",
        "--model",
        "nets:Net",
        "--quiet",
        *(f"--set={field}" for field in fields),
    ]
    said = attempt.tenfold(*command, limit=LOSS_LIMIT, wrapper=wrapper)
    _check(said, signal.SIGKILL)
    recorded = [path for path in attempt.folder.glob("host*/runs/*") if path.is_dir()]
    if not names:
        if said.code or len(recorded) != 1:
            raise Fell(f"ranks that are the same ended with {said.code}: {said.text[-2000:]}")
    elif not said.code or recorded:
        raise Fell(f"{names} differed on rank {odd}: exit code {said.code}, recorded {recorded}: {said.text[-2000:]}")
    elif not any(name in " ".join(said.text.split()) for name in names):
        raise Fell(f"{names} differed on rank {odd}, and is not named: {said.text[-2000:]}")


def _write_host(folder: Path, names: list[str]) -> dict[str, Any]:
    """Write the files of one host; return its folder and the options of its rank."""
    own: dict[str, Any] = {"options": [], "hidden": 8, "activation": "Tanh", "labels": "ab", "samples": 80}
    for name in names:
        own |= DIFFERENCES[name]
    folder.mkdir()
    rows = [f"{number % 7},{number % 5},{own['labels'][number % 2]}" for number in range(own["samples"])]
    (folder / "table.csv").write_text("\n".join(["a,b,label", *rows]))
    (folder / "nets.py").write_text(MODEL.format(**own))
    return {"folder": str(folder), "options": own["options"]}


BACKEND = """
import sys
import torch, tenfold
import torch.distributed as dist

dist.init_process_group("tenfold")
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("BEGUN", flush=True)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 20)).sum().backward()
    optimizer.step()
"""
SPY = """
import os, sys

os.setgid(65534)
os.setuid(65534)
for name in os.listdir("/dev/shm"):
    path = f"/dev/shm/{name}"
    if "tenfold" in name and (os.access(path, os.R_OK) or os.access(path, os.W_OK)):
        sys.exit(f"another user can open {path}")
for pid in sys.argv[1:]:
    try:
        sys.exit(f"another user sees the open files of rank {pid}: {os.listdir(f'/proc/{pid}/fd')}")
    except PermissionError:
        pass
"""


def backend(attempt: Attempt) -> None:
    """A rank of a DDP script on the backend is killed or stopped: the others name it. Another user cannot read them."""
    ranks, number = attempt.random.choice([2, 3]), attempt.random.choice([signal.SIGKILL, signal.SIGSTOP])
    program = attempt.folder / "script.py"
    program.write_text(BACKEND)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    files = [attempt.folder / f"rank-{rank}" for rank in range(ranks)]
    world = meeting | {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    started = []
    try:
        for rank, file in enumerate(files):
            own = attempt.environment | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with file.open("w") as out:
                command = [sys.executable, str(program)]
                started.append(subprocess.Popen(command, env=own, stdout=out, stderr=subprocess.STDOUT))
        _wait(lambda: all("BEGUN" in file.read_text() for file in files), LIMIT, "the ranks did not begin")
        if os.geteuid() == 0:
            spy = [sys.executable, "-c", SPY, *(str(rank.pid) for rank in started)]
            if (said := subprocess.run(spy, capture_output=True, text=True, check=False)).returncode:
                raise Fell(said.stderr)
        time.sleep(attempt.random.uniform(0, 0.5))
        victim = attempt.random.randrange(ranks)
        started[victim].send_signal(number)
        others = [rank for rank in range(ranks) if rank != victim]
        _wait(lambda: all(started[rank].poll() is not None for rank in others), LOSS_LIMIT, "the others did not end")
        for rank in others:
            text = files[rank].read_text()
            if started[rank].returncode != 1 or f"rank {victim} " not in text:
                raise Fell(f"{number.name} to rank {victim}: rank {rank} ended with {started[rank].returncode}: {text}")
    finally:
        for process in started:
            process.kill()
            process.wait()


def _wait(is_over: Callable[[], bool], limit: float, problem: str) -> None:
    until = time.monotonic() + limit
    while not is_over():
        if time.monotonic() > until:
            raise Fell(f"{problem} within {limit:g} s")
        time.sleep(0.05)


def _check(said: Said, number: signal.Signals) -> None:
    """Check what was said; launchers have tracebacks of their own."""
    if any(f'File "{folder}' in said.text for folder in SOURCES.split(os.pathsep)):
        raise Fell(f"a traceback: {said.text[-3000:]}")
    if said.code and number == signal.SIGSTOP and "error: worker " not in said.text:
        raise Fell(f"nobody names the rank that was stopped: {said.text[-2000:]}")


def launcher(name: str) -> list[str]:
    """Return the command that starts two ranks: torchrun where there is no MPI."""
    from tenfold.launchers import find_mpirun

    program = find_mpirun() if name == "mpirun" and importlib.util.find_spec("mpi4py") is not None else None
    if program is None:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return [program, *(["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []), "-n", "2"]


def _ranks(command: Command) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(command.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if any(name in process.environ() for name in RANK_VARIABLES):
                    found.append(process)
    return found
