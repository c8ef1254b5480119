"""Ranks under torchrun or mpirun that are killed or stopped at a random moment, also before they have met."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time

import psutil
from attempt import LOSS_LIMIT, SOURCES, Attempt, Command, Fell, Said

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


def _check(said: Said, number: signal.Signals) -> None:
    """Check what was said; launchers have tracebacks of their own."""
    if any(f'File "{folder}' in said.text for folder in SOURCES.split(os.pathsep)):
        raise Fell(f"a traceback: {said.text[-3000:]}")
    if said.code and number == signal.SIGSTOP and "error: worker " not in said.text:
        raise Fell(f"nobody names the rank that was stopped: {said.text[-2000:]}")


def launcher(name: str) -> list[str]:
    """Return the command that starts two ranks: torchrun where there is no MPI."""
    from tenfold.launch.start import find_mpirun

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
