"""The jobs that are under way in a run store, for whoever looks at it: `tenfold runs` and the board.

Each job has a folder in the store, in which the command that submitted it notes what it is, the job itself how far it
is, and Slurm's number of it where it has one.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tenfold.common.files import make_private, write_atomically
from tenfold.errors import MachineError, StoreError
from tenfold.executors import slurm
from tenfold.executors.jobs import FOLDER, OF_RUN, PROGRESS, STORE, Job
from tenfold.runs import JobState

ABOUT = "about.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnderWay(JobState):
    """A job that has not come back; of one in Slurm, `state` is Slurm's own word and number."""

    run: int | None
    """The sweep or cross-validation that it belongs to; None for one of a comparison."""
    executor: str


def note_job(job: Job, executor: str) -> None:
    """Note in the folder of a job its description, and which process waits for it."""
    about = {"label": job.label, "scope": job.scope, "executor": executor, "host": socket.gethostname()}
    with suppress(OSError, StoreError):  # whoever needs the folder says what is wrong with it
        folder = Path(job.kept_in)
        make_private(folder)
        process = {"pid": os.getpid(), "began": psutil.Process().create_time()}
        write_atomically(folder / ABOUT, json.dumps(about | process).encode())


def forget_job(folder: str) -> None:
    """Remove that note, as the job is not waited for anymore."""
    with suppress(OSError):
        (Path(folder) / ABOUT).unlink()


def state_of(folder: Path, label: str) -> JobState:
    """Return the state of a job that has not ended, from the progress that it writes if home sees it."""
    progress = slurm.read_file(folder / STORE / PROGRESS)
    try:
        return JobState(label, "running", str(progress["host"]), progress["step"] / max(1, progress["steps"]))
    except (KeyError, TypeError):
        return JobState(label, "waiting")


def jobs_under_way(store: Path) -> list[JobUnderWay]:
    """Return the jobs of a run store that have not come back, those of one command together."""
    folders = [path.parent for path in (store / FOLDER).glob(f"*/{ABOUT}")]
    return sorted(_read(folders), key=lambda job: (job.run or 0, len(job.label), job.label))


def _read(folders: list[Path]) -> Iterator[JobUnderWay]:
    states: dict[str, slurm.Status] = {}
    if any((folder / slurm.ID).exists() for folder in folders):
        with suppress(MachineError):  # no Slurm on this machine
            states = slurm.states_of_jobs()
    for folder in folders:
        about, number = slurm.read_file(folder / ABOUT), slurm.read_file(folder / slurm.ID).get("id", "")
        now = state_of(folder, str(about.get("label", "")))
        state: str = "done" if (folder / slurm.END).exists() else now.state
        if number:
            status = states.get(number, slurm.UNKNOWN)
            if state != "done" and status.state not in slurm.ACTIVE:
                continue
            state = f"{status if status.state else state} ({number})"
        elif not _is_waited_for(about):
            continue
        run = str(about.get("scope", "")).partition(",")[0].removeprefix(OF_RUN)
        number_of_run = int(run) if run.isdecimal() else None
        about = {"run": number_of_run, "executor": str(about.get("executor", ""))}
        yield JobUnderWay(now.label, state, now.node, now.done, **about)


def _is_waited_for(about: dict[str, Any]) -> bool:
    """Return whether the command that submitted a job is still there, as far as this machine can know."""
    if about.get("host") != socket.gethostname():
        return True
    try:
        return bool(abs(psutil.Process(about["pid"]).create_time() - about["began"]) < 1)
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
