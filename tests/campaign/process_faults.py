"""Processes that are killed, stopped or paused at a random moment, and models that block or keep Python's lock."""

import contextlib
import os
import signal
import time

import psutil
from attempt import EXPERIMENT, LOSS_LIMIT, Attempt, Fell, save_experiment
from rank_faults import LAUNCHERS, launcher

PARTS = ("worker", "worker", "parent", "server")
MODEL = '''
import os
import threading
from torch import nn

class Locked(nn.Module):
    """Waits for ever for a lock, in some workers, at some step."""

    def __init__(self, step: int, workers: list[int]) -> None:
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(64, 10)
        self.step, self.workers, self.steps = step, workers, 0

    def forward(self, x):
        if self.training:
            self.steps += 1
            name = __import__("multiprocessing").current_process().name
            here = int(name.rpartition("-")[2]) if name[-1].isdigit() else 0
            if self.steps == self.step and here in self.workers and not os.environ.get("CAMPAIGN_UNLOCKED"):
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
        return self.linear(self.flatten(x))
'''

KEEPING = '''
import ctypes
import os
from torch import nn

class Keeping(nn.Module):
    """Keeps Python's lock for some seconds, as a call into C may, in some workers or in all."""

    def __init__(self, step: int, every: int, seconds: int) -> None:
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(64, 10)
        self.step, self.every, self.seconds, self.steps = step, every, seconds, 0

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.steps == self.step and os.getpid() % self.every == 0:
                ctypes.PyDLL(None).sleep(self.seconds)
        return self.linear(self.flatten(x))
'''


def kill(attempt: Attempt) -> None:
    """SIGKILL to a worker, the parent or the fork server; the run is resumed, perhaps after a second kill."""
    file = attempt.write_experiment()
    for arguments in (["train", str(file)], ["resume", "last"]):
        _strike(attempt, signal.SIGKILL, arguments)
        if attempt.random.random() < 0.7 or not attempt.runs() or attempt.runs()[-1]["status"] == "finished":
            break
    attempt.finish()


def stop(attempt: Attempt) -> None:
    """SIGSTOP to a worker, the fork server, or for some seconds the parent."""
    _strike(attempt, signal.SIGSTOP, ["train", str(attempt.write_experiment())])
    attempt.finish()


def deadlock(attempt: Attempt) -> None:
    """A model that waits for a lock in one worker or in all."""
    (attempt.folder / "locked.py").write_text(MODEL)
    workers = attempt.random.choice([[0], [1], [0, 1]])
    fields = {"model": "locked:Locked", "epochs": 6, "hidden": None, "dropout": None, "batchnorm": None}
    fields |= {"model_options": {"step": attempt.random.randint(1, 60), "workers": workers}, "stall_after": 10}
    plain = {name: value for name, value in fields.items() if value is not None}
    usual = {name: value for name, value in EXPERIMENT.items() if name not in fields}
    file = save_experiment(attempt.folder / "experiment.toml", usual | plain)
    said = attempt.tenfold("train", str(file), "--quiet")
    attempt.check_said(said, (2,))
    if "worker" not in said.err:
        raise Fell(f"the sentence names no worker: {said.err}")
    attempt.environment["CAMPAIGN_UNLOCKED"] = "1"
    runs = attempt.runs()
    if runs:
        attempt.check_said(attempt.tenfold("resume", "last", "--quiet"), (0,))


def lock(attempt: Attempt) -> None:
    """A model keeps Python's lock for longer than a worker may be stopped: in processes, folds and ranks."""
    (attempt.folder / "keeping.py").write_text(KEEPING)
    options = {"step": attempt.random.randint(1, 60), "every": attempt.random.choice([1, 2])}
    options["seconds"] = attempt.random.randint(5, 9)
    usual = {name: EXPERIMENT[name] for name in EXPERIMENT if name not in ("hidden", "dropout", "batchnorm")}
    fields = usual | {"model": "keeping:Keeping", "model_options": options, "epochs": 6, "stall_after": 60}
    how = attempt.random.choice(["train", "crossval", "torchrun", "mpirun"])
    wrapper = launcher(how) if how in LAUNCHERS else []
    if how == "crossval":
        fields |= {"folds": 2, "workers": 1}
    file = save_experiment(attempt.folder / "experiment.toml", fields)
    attempt.environment["PYTHONPATH"] += os.pathsep + str(attempt.folder)
    verb = "crossval" if how == "crossval" else "train"
    said = attempt.tenfold(verb, str(file), "--quiet", wrapper=wrapper)
    if said.code or any(run["status"] != "finished" for run in attempt.runs()):
        raise Fell(f"{how}, {options}: exit code {said.code}: {said.text[-2000:]}")


def pause(attempt: Attempt) -> None:
    """All processes are stopped, and continue one after another, in any order."""
    delay = attempt.random.uniform(0, attempt.seconds())
    with attempt.started("train", str(attempt.write_experiment()), "--quiet") as command:
        began = time.monotonic()
        while time.monotonic() - began < delay and command.process.poll() is None:
            command.family()
            time.sleep(0.01)
        family = [process for part in command.family().values() for process in part]
        for action, wait in (("suspend", 0.0), ("resume", 0.7)):
            attempt.random.shuffle(family)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    getattr(process, action)()
                time.sleep(attempt.random.uniform(0, wait))
            if action == "suspend":
                time.sleep(attempt.random.uniform(1, 12))
        attempt.check_said(command.wait(LOSS_LIMIT + attempt.seconds()), (0,))
    attempt.finish()


def term(attempt: Attempt) -> None:
    """SIGTERM to the command, or to its whole group; it says how to resume the run."""
    delay, group = attempt.random.uniform(0, 1.2 * attempt.seconds()), attempt.random.random() < 0.5
    with attempt.started("train", str(attempt.write_experiment()), "--quiet") as command:
        began = time.monotonic()
        while time.monotonic() - began < delay and command.process.poll() is None:
            command.family()
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(command.process.pid, signal.SIGTERM)
        said = command.wait(LOSS_LIMIT)
    early = said.code == -signal.SIGTERM and not said.err  # before the command line was loaded
    attempt.check_said(said, (-signal.SIGTERM,) if early else (0, 143))
    runs = attempt.runs()
    if said.code == 143 and runs and runs[-1]["status"] != "finished" and "tenfold resume" not in said.err:
        raise Fell(f"nothing says how to resume the run: {said.err}")
    attempt.finish()


def replace(attempt: Attempt) -> None:
    """SIGKILL to workers that are replaced: the run goes on to its end, unless all workers are lost at a time."""
    fields = {"workers": 3, "epochs": 80, "on_failure": "continue", "replacements": 9}
    fields |= attempt.random.choice([{}, {"average": "weights"}, {"average": "weights", "strategy": "ring"}])
    with attempt.started("train", str(attempt.write_experiment(**fields)), "--quiet") as command:
        for _ in range(attempt.random.randint(1, 4)):
            until = time.monotonic() + attempt.random.uniform(0, 2)
            while time.monotonic() < until and command.process.poll() is None:
                command.family()
                time.sleep(0.01)
            if targets := command.wait_for("worker"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(attempt.random.choice(targets).pid, signal.SIGKILL)
        said = command.wait(2 * LOSS_LIMIT)
    attempt.check_said(said, (0, 2))
    if said.code == 2 and "was killed by SIGKILL" not in said.err:
        raise Fell(f"the sentence names no lost worker: {said.err}")
    if said.code == 2 and attempt.runs():
        attempt.check_said(attempt.tenfold("resume", "last", "--quiet"), (0,))
    if attempt.runs()[-1]["status"] != "finished":
        raise Fell(f"the run is {attempt.runs()[-1]['status']}")


def _strike(attempt: Attempt, number: signal.Signals, arguments: list[str]) -> None:
    """Start a command, send a signal to one of its processes at a random moment, and check how the command ends."""
    part, delay = attempt.random.choice(PARTS), attempt.random.uniform(0, attempt.seconds())
    with attempt.started(*arguments, "--quiet") as command:
        began = time.monotonic()
        while time.monotonic() - began < delay and command.process.poll() is None:
            command.family()
            time.sleep(0.01)
        targets = command.wait_for(part)
        if not targets:
            attempt.check_said(command.wait(LOSS_LIMIT), (0,))
            return
        target = attempt.random.choice(targets)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.pid, number)
        if number == signal.SIGSTOP and part == "parent":
            time.sleep(attempt.random.uniform(0, 7))
            target.send_signal(signal.SIGCONT)
        try:
            said = command.wait(LOSS_LIMIT + attempt.seconds())
        except Fell as fell:
            raise Fell(f"{number.name} to the {part} {delay:.1f} s after the start: {fell}") from None
        codes = {"worker": (0, 2), "server": (0, 2), "parent": (-number, 0)}[part]
        if part == "parent" and number == signal.SIGSTOP:
            codes = (0,)
        attempt.check_said(said, codes)
        if said.code == 2 and part == "worker" and "worker" not in said.err:
            raise Fell(f"the sentence names no worker: {said.err}")
