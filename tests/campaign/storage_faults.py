"""Full and read-only disks, odd file systems, flipped bits, clocks that step, and hosts that change their name."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from attempt import EXPERIMENT, LIMIT, SOURCES, Attempt, Command, Fell, Skipped
from fuse_folder import mounted

SITE = """
import os
import socket
import time

_began, _time = time.monotonic(), time.time

def _stepped():
    step, after = float(os.environ["CAMPAIGN_STEP"]), float(os.environ["CAMPAIGN_STEP_AFTER"])
    return _time() + (step if time.monotonic() - _began > after else 0.0)

if "CAMPAIGN_STEP" in os.environ:
    time.time = _stepped
if "CAMPAIGN_HOST" in os.environ:
    socket.gethostname = lambda: os.environ["CAMPAIGN_HOST"]
"""
EPOCHS = 80
"""Enough that a run has not finished a second after its first checkpoint."""
FINISHED_FILES = ("model.pt", "tenfold.db")
INTERRUPTED_FILES = ("checkpoint", "checkpoint", "manifest", "tenfold.db")


def disk(attempt: Attempt) -> None:
    """A disk that is full, or a limit on the size of files, at a random size."""
    file = attempt.write_experiment()
    arguments = ["train", str(file), "--quiet"]
    if os.geteuid() == 0 and attempt.random.random() < 0.7:
        size = attempt.random.choice([8, 64, 200, 260, 300, 400, 600, 1000])
        with _small_disk(attempt.folder / "runs", size) as grow:
            if grow is not None:
                attempt.check_said(attempt.tenfold(*arguments), (0, 2))
                attempt.check_said(attempt.forked("runs"), (0, 2))  # reading the log takes some room, too
                grow()
                attempt.finish()
                return
    size = attempt.random.choice([1_000, 20_000, 45_000, 60_000, 80_000, 200_000])
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    attempt.check_said(attempt.tenfold(*arguments, preexec_fn=limit), (0, 2))
    attempt.finish()


def flip(attempt: Attempt) -> None:
    """One bit flipped in a checkpoint, a manifest, model.pt or the database."""
    finished = attempt.random.random() < 0.5
    shutil.copytree(recorded_store(attempt.work, finished), attempt.folder / "runs")
    kind = attempt.random.choice(FINISHED_FILES if finished else INTERRUPTED_FILES)
    pattern = {"checkpoint": "*/checkpoint/*.pt", "manifest": "*/checkpoint/*.json", "model.pt": "*/model.pt"}
    path = attempt.random.choice(sorted((attempt.folder / "runs").glob(pattern.get(kind, "tenfold.db"))))
    content = bytearray(path.read_bytes())
    place = attempt.random.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    where = f"bit {place} of {path.name}"
    for verb in (["runs"], ["show", "last"], ["doctor", "--runs"]):
        attempt.check_said(attempt.forked(*verb), (0, 1, 2))
    if finished:
        if kind == "model.pt" and _loads_other_weights(path, attempt):
            raise Fell(f"{where} was flipped, and other weights are loaded")
        return
    said = attempt.forked("resume", "last", "--quiet")
    attempt.check_said(said, (0, 2))
    if said.code == 0:
        (weights,) = (attempt.folder / "runs").glob("*/model.pt")
        try:
            attempt.check_weights(weights)
        except Fell as fell:
            raise Fell(f"{where} was flipped: {fell}") from None


def clock(attempt: Attempt) -> None:
    """The clock steps while a run trains; meanwhile nobody else may resume it, and after a crash it is resumed."""
    step = attempt.random.choice([-1, 1]) * attempt.random.choice([3, 3600, 86_400, 10 * 365 * 86_400])
    attempt.environment["CAMPAIGN_STEP"] = str(step)
    attempt.environment["CAMPAIGN_STEP_AFTER"] = f"{attempt.random.uniform(0, attempt.seconds()):.2f}"
    _strange(attempt)


def host(attempt: Attempt) -> None:
    """A run crashes on a host of one name and is resumed under another."""
    attempt.environment["CAMPAIGN_HOST"] = "before"
    _strange(attempt, CAMPAIGN_HOST="after")


def full(attempt: Attempt) -> None:
    """The disk fills up while a run trains for long; training goes on, and is recorded when there is room."""
    if os.geteuid() != 0:
        raise Skipped("mounting a small disk needs root")
    fields = {"epochs": 300, "batch_size": 100}
    limit = attempt.limit(**fields)
    with _small_disk(attempt.folder / "runs", 4000) as grow:
        if grow is None:
            raise Skipped("nothing can be mounted here")
        with attempt.started("train", str(attempt.write_experiment(**fields)), "--quiet") as command:
            _wait_for_checkpoint(attempt, command, limit)
            with contextlib.suppress(OSError), (attempt.folder / "runs" / "filler").open("wb") as filler:
                while True:
                    filler.write(b"x" * 4096)
                    filler.flush()
            attempt.check_said(command.wait(limit), (0, 2))
        (attempt.folder / "runs" / "filler").unlink()
        grow()
        attempt.finish(**fields)


def readonly(attempt: Attempt) -> None:
    """A store on a disk that is mounted read-only, finished or left by a process that was killed; it can be read."""
    finished = attempt.random.random() < 0.6
    runs = attempt.folder / "runs"
    shutil.copytree(recorded_store(attempt.work, finished), runs)
    mounted = os.geteuid() == 0 and _mount("--bind", str(runs), str(runs))
    if mounted and not _mount("-o", "remount,bind,ro", str(runs)):
        subprocess.run(["umount", str(runs)], check=True)
        mounted = False
    if not mounted:
        if os.geteuid() == 0:
            raise Skipped("nothing can be mounted here")
        for path in (runs, *runs.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        for verb in (["runs"], ["show", "last"], ["report", "last", "-o", "report.html"], ["doctor", "--runs", "runs"]):
            attempt.check_said(attempt.forked(*verb), (0,))
        if finished:
            import numpy as np

            np.save(attempt.folder / "x.npy", np.zeros((3, 8, 8), dtype=np.float32))
            attempt.check_said(attempt.forked("predict", "last", "x.npy"), (0,))
        attempt.check_said(attempt.forked("tag", "last", "x"), (2,))
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(runs)], check=True)
        else:
            for path in (runs, *runs.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)


def fuse(attempt: Attempt) -> None:
    """A store on a file system without shared memory maps: the run is killed, read, and resumed."""
    for name in ("behind", "runs"):
        (attempt.folder / name).mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mounted(attempt.folder / "behind", attempt.folder / "runs"))
        except OSError as error:
            raise Skipped(str(error)) from None
        limit = attempt.limit(epochs=EPOCHS)
        with attempt.started("train", str(attempt.write_experiment(epochs=EPOCHS)), "--quiet") as running:
            _wait_for_checkpoint(attempt, running, limit)
            for _ in range(attempt.random.randint(0, 5)):
                attempt.check_said(attempt.forked("runs"), (0,))
            os.kill(running.process.pid, signal.SIGKILL)
            running.kill()
        attempt.finish(epochs=EPOCHS)
        if left := [path.name for path in (attempt.folder / "runs").glob("tenfold.db-*")]:
            raise Fell(f"beside the store there are {', '.join(left)}")


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def _wait_for_checkpoint(attempt: Attempt, command: Command, limit: float) -> None:
    until = time.monotonic() + limit
    while not list(attempt.folder.glob("runs/*/checkpoint/manifest.json")):
        if time.monotonic() > until or command.process.poll() is not None:
            raise Fell(f"no checkpoint was written: {command.wait(1).text}")
        time.sleep(0.05)


def _strange(attempt: Attempt, **later: str) -> None:
    """Train in a changed world, try to resume the run meanwhile, kill it, and resume it."""
    (attempt.folder / "site").mkdir()
    (attempt.folder / "site" / "sitecustomize.py").write_text(SITE)
    attempt.environment["PYTHONPATH"] = os.pathsep.join([str(attempt.folder / "site"), SOURCES])
    file, limit = attempt.write_experiment(epochs=EPOCHS), attempt.limit(epochs=EPOCHS)
    with attempt.started("train", str(file), "--quiet") as command:
        _wait_for_checkpoint(attempt, command, limit)
        attempt.environment |= later
        workers = command.family()["worker"]
        os.kill(command.process.pid, signal.SIGSTOP)  # so that it cannot finish while another tries to take its run
        try:
            second = attempt.tenfold("resume", "last", "--quiet", limit=limit)
        finally:
            os.kill(command.process.pid, signal.SIGCONT)
        if command.process.poll() is None and second.code == 0:
            raise Fell("two processes trained one run at once")
        attempt.check_said(second, (2,))
        time.sleep(attempt.random.uniform(0, 1))
        if attempt.random.random() < 0.5 and workers:
            os.kill(command.process.pid, signal.SIGKILL)
        command.kill()
    attempt.finish(epochs=EPOCHS)


@contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Iterator[Any]:
    """Mount a small disk; the value enlarges it, or is None where nothing can be mounted."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@cache
def recorded_store(work: Path, finished: bool) -> Path:
    """Return a store with one run that has finished, or that was interrupted after half of its epochs."""
    shutil.rmtree(work / f"recorded-{finished}-0", ignore_errors=True)  # of an attempt that failed
    attempt = Attempt(f"recorded-{finished}", 0, 0, work)
    file = attempt.write_experiment()
    with attempt.started("train", str(file), "--quiet") as command:
        if finished:
            attempt.check_said(command.wait(LIMIT), (0,))
        else:
            until = time.monotonic() + LIMIT
            while time.monotonic() < until:
                manifests = list(attempt.folder.glob("runs/*/checkpoint/manifest.json"))
                if manifests and json.loads(manifests[0].read_text())["epoch"] >= EXPERIMENT["epochs"] // 2:
                    break
                time.sleep(0.02)
            os.kill(command.process.pid, signal.SIGKILL)
            command.kill()
    return attempt.folder / "runs"


def _loads_other_weights(path: Path, attempt: Attempt) -> bool:
    from tenfold.errors import StoreError
    from tenfold.runs import checkpoint

    try:
        checkpoint.load_tensors(path)
    except StoreError:
        return False
    try:
        attempt.check_weights(path)
    except Fell:
        return True
    return False
