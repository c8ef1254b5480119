"""Slurm: jobs are tasks of an array that `sbatch` submits, in a folder shared by this machine and the nodes.

A job's folder contains its experiment, its store with checkpoints, and finally its outcome. Therefore a job that is
requeued or submitted again continues from its checkpoint, and the command that submitted it may end and be started
again in the meantime. Run as a program, this module executes a task of an array.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from shlex import join, quote
from types import FrameType
from typing import Any, NamedTuple

from tenfold.common.files import make_private, open_regular, read_regular, write_atomically
from tenfold.common.imports import python_command
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError
from tenfold.executors.jobs import STORE, Job, JobEnd, run_job
from tenfold.runs import Store
from tenfold.runs.callbacks import StopBehind
from tenfold.runs.checkpoint import find_undamaged

COLLECT_SECONDS = 0.1
"""How long to collect jobs that are submitted with one `sbatch`."""
POLL_SECONDS = 1.0
"""Interval at which Slurm is asked about jobs."""
LATE_SECONDS = 30.0
"""Maximum delay with which a file appears on a network file system."""
AGAIN_SECONDS = 3
"""Seconds after which a job that was interrupted and still runs is interrupted again."""
WARNED_SECONDS = 30
"""How long before its time limit a job is notified, to be requeued from its checkpoint."""
COMMAND_SECONDS = 60.0
LARGEST_ARRAY = 1000
"""The tasks of an array; by default Slurm accepts 1000."""
JOB, OBJECTS, ID, BUNDLE, END, OUTPUT = (
    "job.json",
    "objects.pickle",
    "slurm.json",
    "bundle.zip",
    "end.json",
    "output.txt",
)
ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STAGE_OUT")
NODE_STATES = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL")
SOON = ("", "None", "Resources", "Priority", "BeginTime", "Cleaning", "JobArrayTaskLimit")
"""Ordinary reasons for waiting in a queue; other reasons are reported."""
REASONS = {
    "PartitionConfig": "no node of the partition has the cores, GPUs and memory that they need",
    "PartitionTimeLimit": "the partition does not allow their --time",
}
ADVICE = {
    "OUT_OF_MEMORY": "; ask for more memory: --mem",
    "TIMEOUT": "; run again, it continues from its checkpoint; --time allows more at once",
}


class Status(NamedTuple):
    """The status of a job in Slurm."""

    state: str
    """The state in capital letters; "" for a job unknown to Slurm."""
    reason: str = ""
    """Why it waits."""

    def __str__(self) -> str:
        return self.state.lower() + (f", {self.reason}" if self.state == "PENDING" and self.reason not in SOON else "")


UNKNOWN = Status("")


class JobGone(MachineError):  # noqa: N818 - it says what happened
    """A job has left Slurm without an outcome."""


class NodeLost(MachineError):  # noqa: N818 - it says what happened
    """The node of a job failed, or Slurm preempted the job."""


class Slurm(Executor):
    """Runs each job as a task of a job array; its options are those of sbatch."""

    name = "slurm"
    survives = True
    """Jobs continue when the command that submitted them ends."""
    machine_losses = (NodeLost,)

    def __init__(
        self,
        _job_cores: int = 1,
        *,
        partition: str = "",
        time: str = "",
        account: str = "",
        qos: str = "",
        mem: str = "",
    ) -> None:
        options = {"partition": partition, "time": time, "account": account, "qos": qos, "mem": mem}
        self._options = [f"--{name}={value}" for name, value in options.items() if value]
        self._new: list[tuple[Job, Future[Any]]] = []
        self._under_way: dict[Path, tuple[str, Future[Any]]] = {}
        """Slurm's job number and the future of each job, by the folder of the job."""
        self._gone_since: dict[Path, float] = {}
        self.trouble = ""
        """Why jobs wait, if not for other jobs to end."""
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        states_of_jobs()  # raises now if Slurm does not answer

    def submit(self, _function: Callable[..., Any], /, job: Job, *_rest: Any) -> "Future[Any]":  # type: ignore[override]
        """Submit a job together with others submitted shortly after it, or attach to it if it is unfinished."""
        if not job.kept_in:
            raise ExperimentError("Slurm jobs need a run store in a folder that all nodes share; set --runs")
        future: Future[Any] = Future()
        with self._lock:
            self._new.append((job, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="tenfold-slurm")
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop watching; with `cancel_futures` also cancel queued and running jobs."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if cancel_futures:
            self.cancel_all()

    def cancel_all(self) -> None:
        """Cancel all jobs that have not ended."""
        if numbers := [number for number, _ in self._under_way.values() if number]:
            with suppress(MachineError):  # some have just ended
                command("scancel", *numbers)

    @property
    def numbers(self) -> str:
        """Slurm's numbers of the unfinished jobs, for a message."""
        arrays = (number.partition("_")[0] for number, _ in self._under_way.values())
        return ", ".join(dict.fromkeys(filter(None, arrays)))

    @property
    def how_to_stop(self) -> str:
        """The command that stops all jobs."""
        return f"scancel {self.numbers.replace(',', '')}"

    def _watch(self) -> None:
        polled_at = 0.0
        while not self._over.wait(COLLECT_SECONDS):
            with self._lock:
                new, self._new = self._new, []
            try:
                self._start(new)
            except (TenfoldError, OSError) as error:
                submitted = {id(future) for _, future in self._under_way.values()}
                for _, future in new:
                    if id(future) not in submitted and not future.done():
                        future.set_exception(error)
            if self._under_way and time.monotonic() - polled_at > POLL_SECONDS:
                self._look()
                polled_at = time.monotonic()

    def _start(self, new: Sequence[tuple[Job, "Future[Any]"]]) -> None:
        """Attach to unfinished jobs, and submit the others, as one array for equal resources."""
        arrays: dict[tuple[int, int], list[tuple[Path, Future[Any]]]] = {}
        states = states_of_jobs() if new else {}
        for job, future in new:
            folder = Path(job.kept_in)
            number = str(read_file(folder / ID).get("id", ""))
            if states.get(number, UNKNOWN).state in ACTIVE or (folder / END).exists():
                self._under_way[folder] = (number, future)  # whose number is not known if that file was lost
                continue
            make_private(folder)
            for name in (OUTPUT, BUNDLE):  # a shell appends to the one; neither may be a link
                (folder / name).unlink(missing_ok=True)
            write_atomically(folder / OBJECTS, job.objects)
            write_atomically(folder / JOB, json.dumps(asdict(replace(job, objects=b"")) | {"objects": ""}).encode())
            arrays.setdefault((job.cores, job.gpus), []).append((folder, future))
        for (cores, gpus), members in arrays.items():
            for first in range(0, len(members), LARGEST_ARRAY):
                self._submit(members[first : first + LARGEST_ARRAY], cores, gpus)

    def _submit(self, members: Sequence[tuple[Path, "Future[Any]"]], cores: int, gpus: int) -> None:
        """Submit an array whose tasks each execute the job of one folder."""
        folders = " ".join(quote(str(folder)) for folder, _ in members)
        program = "from tenfold.executors.slurm import main; main()"
        run = f'exec {join(python_command())} -c {quote(program)} "$1" >>"$1/{OUTPUT}" 2>&1'
        options = [f"--array=0-{len(members) - 1}", "--ntasks=1", f"--cpus-per-task={cores}"]
        options += [f"--gpus={gpus}"] * (gpus > 0)
        options += ["--requeue", f"--signal=B:USR1@{WARNED_SECONDS}", "--job-name=tenfold", "--output=/dev/null"]
        script = f"#!/bin/sh\nset -- {folders}\nshift $SLURM_ARRAY_TASK_ID\n{run}\n"
        number = command("sbatch", "--parsable", *options, *self._options, script=script).partition(";")[0].strip()
        for place, (folder, future) in enumerate(members):
            write_atomically(folder / ID, json.dumps({"id": f"{number}_{place}"}).encode())
            self._under_way[folder] = (f"{number}_{place}", future)

    def _look(self) -> None:
        """Resolve futures with the outcomes of jobs, or with errors."""
        try:
            states = states_of_jobs()
        except MachineError:  # the controller is busy or restarting, which does not affect jobs
            return
        self.trouble = _describe_waiting([states.get(number, UNKNOWN) for number, _ in self._under_way.values()])
        for folder, (number, future) in list(self._under_way.items()):
            end = self._end_of(number, states.get(number, UNKNOWN).state, folder)
            if future.cancelled():
                if number:
                    with suppress(MachineError):  # it has just ended
                        command("scancel", number)
            elif end is None or not future.set_running_or_notify_cancel():
                continue
            elif isinstance(end, MachineError):
                future.set_exception(end)
            else:
                future.set_result(end)
            del self._under_way[folder]

    def _end_of(self, number: str, state: str, folder: Path) -> JobEnd | MachineError | None:
        """Return the outcome of a job, the error if there will be none, or None while it may still come."""
        try:
            if (folder / END).exists():
                end = read_file(folder / END)
                bundle = _content(folder / BUNDLE) if end.get("bundle") else b""
                return bundle, str(end.get("error", ""))
        except OSError as error:
            return None if self._may_be_late(folder) else JobGone(f"Slurm job {number}: {error}")
        if state in ACTIVE or (state in ("COMPLETED", "") and self._may_be_late(folder)):
            return None
        if state in NODE_STATES:
            return NodeLost(f"Slurm job {number}: {state}")
        return JobGone(_describe(number, state, folder))

    def _may_be_late(self, folder: Path) -> bool:
        """Return whether the outcome of a job that Slurm no longer lists may still appear."""
        since = self._gone_since.setdefault(folder, time.monotonic())
        with suppress(OSError):
            list(folder.iterdir())  # refreshes a network file system's cache
        return time.monotonic() - since < LATE_SECONDS


def states_of_jobs() -> dict[str, Status]:
    """Return the status of all of this user's jobs in Slurm, by their numbers."""
    lines = command("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r").splitlines()
    fields = (line.strip().split("|") for line in lines)
    return {number: Status(*status) for number, *status in fields}


def _describe_waiting(jobs: Sequence[Status]) -> str:
    """Return Slurm's reasons why jobs wait, other than the usual ones; "" if there are none.

    The text does not contain the number of jobs, so it changes only when a reason appears or disappears.
    """
    reasons = sorted({job.reason for job in jobs if job.state == "PENDING" and job.reason not in SOON})
    said = [f"{reason} ({REASONS[reason]})" if reason in REASONS else reason for reason in reasons]
    return f"some jobs wait in Slurm's queue: {'; '.join(said)}" if said else ""


def command(program: str, *arguments: str, script: str = "") -> str:
    """Return the output of one of Slurm's commands; raise MachineError with its own words if it fails."""
    line = [program, *arguments]
    try:
        done = subprocess.run(line, input=script, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise MachineError(
            f'on = "slurm" needs the Slurm commands, but there is no {program}; run this on a login node'
        ) from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{program} did not answer within {COMMAND_SECONDS:g} s; is Slurm's controller up?"
        ) from None
    if done.returncode:
        said = [text.removeprefix(f"{program}: ").removeprefix("error: ") for text in done.stderr.splitlines()]
        raise MachineError(f"{program} failed: {'; '.join(said) or f'exit code {done.returncode}'}")
    return done.stdout


def _describe(number: str, state: str, folder: Path) -> str:
    """Return why a job has no outcome, with its last printed line if the job itself failed."""
    last = ""
    if state in ("FAILED", "COMPLETED", ""):
        with suppress(OSError, IndexError):
            last = f": {read_regular(folder / OUTPUT).decode(errors='replace').strip().splitlines()[-1]}"
    ended = f"ended as {state}" if state else "is gone"
    return f"Slurm job {number} {ended}{ADVICE.get(state, '')}{last}"


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a job; empty if it cannot be read."""
    try:
        return dict(json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError):
        return {}


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_job(folder: Path) -> Job:
    """Return the job of a folder."""
    fields = read_file(folder / JOB)
    stop = fields.pop("stop_behind", None)
    if stop is not None:
        stop = StopBehind(stop["metric"], stop["lower"], {int(epoch): value for epoch, value in stop["needed"].items()})
    fields |= {"objects": _content(folder / OBJECTS), "path": tuple(fields["path"]), "stop_behind": stop}
    return Job(**fields)


def main() -> None:
    """Run the job in the folder given as an argument; shortly before its time limit, let Slurm requeue it."""
    for number in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, _interrupt)
    folder = Path(sys.argv[1])
    job, before = read_job(folder), _completed_epochs(folder)
    try:
        bundle, error = run_job(job)
    except KeyboardInterrupt:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        if _completed_epochs(folder) > before:
            command("scontrol", "requeue", f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}")
            return
        bundle, error = b"", "the time limit was reached before an epoch was completed; allow more: --time"
    write_atomically(folder / BUNDLE, bundle)
    write_atomically(folder / END, json.dumps({"error": error, "bundle": bool(bundle)}).encode())


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.alarm(AGAIN_SECONDS)  # an exception that reaches a callback of C is lost
    raise KeyboardInterrupt


def _completed_epochs(folder: Path) -> int:
    """Return the number of completed epochs in the last checkpoint of a job."""
    with suppress(StoreError):
        store = Store(folder / STORE, create=False)
        for run in store.runs():  # none, if the job was stopped before it began to train
            manifest, _ = find_undamaged(store.folder_of(run["id"]) / "checkpoint")
            return int(manifest["epoch"]) if manifest else 0
    return 0
