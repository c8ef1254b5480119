"""One attempt of the campaign: a folder, a random generator that its number seeds, and checks of what was promised."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
LIMIT = 180.0
"""Seconds that any command may take, on a busy machine too: a hang lasts for ever, so a longer limit hides none."""
LOSS_LIMIT = 90.0
"""Seconds until the end of a command that lost a worker: 5 s to notice, the rest for a busy machine."""
ORPHAN_LIMIT = 30.0
EXPERIMENT: dict[str, Any] = {
    "model": "mlp",
    "hidden": [16],
    "dropout": 0.2,
    "batchnorm": True,
    "data": "digits",
    "limit": 400,
    "epochs": 40,
    "batch_size": 20,
    "optimizer": "adam",
    "workers": 2,
    "threads": 1,
    "oversubscribe": True,
}
"""Every worker has 400 steps and 40 checkpoints, in about two seconds."""
Fault = Callable[["Attempt"], None]


class Fell(Exception):  # noqa: N818 - a result of the campaign, not an error of it
    """A promise was not kept."""


class Skipped(Exception):  # noqa: N818
    """The fault cannot be made on this machine."""


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


class Attempt:
    """A folder of its own, seeded chance, and the commands and checks that the kinds of faults have in common."""

    def __init__(self, kind: str, number: int, seed: int, work: Path) -> None:
        self.random = random.Random(f"{seed}:{kind}:{number}")
        self.number = number
        self.work = work
        self.folder = work / f"{kind}-{number}"
        self.environment = os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(self.folder / "tmp"), "NO_COLOR": "1"}
        self.environment["TENFOLD_NAMED_IMPORTS"] = str(self.folder / "named_imports.jsonl")
        self.environment.pop("TENFOLD_RUNS", None)
        (self.folder / "tmp").mkdir(parents=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_experiment(self, **fields: Any) -> Path:
        """Write the usual experiment with some fields changed."""
        return save_experiment(self.folder / "experiment.toml", EXPERIMENT | fields)

    @contextmanager
    def started(self, *arguments: str, wrapper: list[str] | None = None, **more: Any) -> Iterator["Command"]:
        """Start the command line; it and all that it started are gone afterwards."""
        command = Command([*(wrapper or []), sys.executable, "-m", "tenfold", *arguments], self, **more)
        try:
            yield command
        finally:
            command.kill()

    def tenfold(self, *arguments: str, limit: float = LIMIT, **more: Any) -> Said:
        """Run the command line to its end."""
        with self.started(*arguments, **more) as command:
            return command.wait(limit)

    def forked(self, *arguments: str, limit: float = LIMIT) -> Said:
        """Run the command line to its end in a fork of this process, which has imported it already."""
        out, err = self.folder / "out", self.folder / "err"
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_here(arguments, self.folder, self.environment, out, err)
        code = _wait_for(child, limit)
        seconds = time.monotonic() - began
        output = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
        if code is None:
            raise Fell(f"`tenfold {' '.join(arguments)}` did not end within {limit:g} s: {output[1][-1000:]}")
        return Said(code, *output, seconds)

    def check_said(self, said: Said, codes: tuple[int, ...]) -> None:
        """Check the exit code, and that no traceback of ours was printed."""
        if "Traceback (most recent call last)" in said.text:
            raise Fell(f"a traceback: {said.text[-3000:]}")
        if said.code not in codes:
            raise Fell(f"exit code {said.code} instead of {codes}: {said.text[-2000:]}")
        if said.code == 2 and not said.err.strip() and "Usage: " not in said.out:  # the help, where nothing was asked
            raise Fell("exit code 2 without a sentence")

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of this folder; the store must be readable whatever happened to it."""
        if not (self.folder / "runs" / "tenfold.db").exists():
            return []
        said = self.forked("runs", "--json")
        self.check_said(said, (0,))
        runs = json.loads(said.out)
        return [run for run in runs if isinstance(run, dict)]

    def finish(self, **fields: Any) -> None:
        """Resume the run if it has not finished, and check that its weights are those of an keep_rng_state run."""
        runs = self.runs()
        if not runs:
            return
        if runs[-1]["status"] != "finished":
            self.check_said(self.tenfold("resume", "last", "--quiet", limit=self.limit(**fields)), (0,))
            runs = self.runs()
        if runs[-1]["status"] != "finished":
            raise Fell(f"after `tenfold resume` the run is {runs[-1]['status']}")
        self.check_weights(self.folder / runs[-1]["path"] / "model.pt", **fields)

    def check_weights(self, path: Path, **fields: Any) -> None:
        """Compare weights bit for bit with those of an keep_rng_state run."""
        import torch

        expected = torch.load(reference(self.work, json.dumps(EXPERIMENT | fields))[0], weights_only=True)
        found = torch.load(path, weights_only=True)
        if found.keys() != expected.keys() or not all(torch.equal(found[name], expected[name]) for name in expected):
            raise Fell("the weights differ from those of an keep_rng_state run")

    def seconds(self, **fields: Any) -> float:
        """Return how long an keep_rng_state run takes."""
        return reference(self.work, json.dumps(EXPERIMENT | fields))[1]

    def limit(self, **fields: Any) -> float:
        """Return how many seconds a run may take here and now, where other programs may take the cores."""
        return LIMIT + 5 * self.seconds(**fields)


class Command:
    """A running command line with the processes that it starts."""

    def __init__(self, command: list[str], attempt: Attempt, **more: Any) -> None:
        self.attempt = attempt
        self.out, self.err = attempt.folder / "command-out", attempt.folder / "command-err"
        self._known: set[psutil.Process] = set()
        self._began = time.monotonic()
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=attempt.folder,
                env=attempt.environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
                **more,
            )

    def family(self) -> dict[str, list[psutil.Process]]:
        """Return its processes by their part: parent, server and workers."""
        found: dict[str, list[psutil.Process]] = {"parent": [], "server": [], "worker": []}
        try:
            parent = psutil.Process(self.process.pid)
            found["parent"] = [parent]
            for child in parent.children():
                if "forkserver" in " ".join(child.cmdline()):
                    found["server"].append(child)
                    found["worker"] += child.children()
            self._known |= {parent, *parent.children(recursive=True)}
        except psutil.Error:
            pass
        return found

    def wait_for(self, part: str, limit: float = LIMIT) -> list[psutil.Process]:
        """Wait until there are processes of this part; return none if the command ended first."""
        until = time.monotonic() + limit
        while time.monotonic() < until and self.process.poll() is None:
            if found := self.family()[part]:
                return found
            time.sleep(0.01)
        return []

    def wait(self, limit: float) -> Said:
        """Wait for the end, then for the end of all that it started."""
        until = time.monotonic() + limit
        while self.process.poll() is None:
            if time.monotonic() > until:
                self.family()
                names = [f"{item.pid} {item.status()}" for item in self._known if item.is_running()]
                raise Fell(f"the command did not end within {limit:g} s; processes: {names}; {self._said().text}")
            self.family()
            time.sleep(0.05)
        said = self._said()
        _, left = psutil.wait_procs(self._known, timeout=ORPHAN_LIMIT)
        if left:
            raise Fell(f"{len(left)} processes outlived the command by {ORPHAN_LIMIT:g} s")
        return said

    def _said(self) -> Said:
        code = self.process.poll()
        seconds = time.monotonic() - self._began
        return Said(
            -1 if code is None else code,
            self.out.read_text(errors="replace"),
            self.err.read_text(errors="replace"),
            seconds,
        )

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self.family()
        for process in self._known:
            try:
                process.kill()
            except psutil.Error:
                continue
        self.process.wait()


def save_experiment(path: Path, fields: dict[str, Any]) -> Path:
    """Write an experiment file."""
    import tomli_w

    path.write_text(tomli_w.dumps(fields))
    return path


@cache
def reference(work: Path, fields: str) -> tuple[Path, float]:
    """Train an experiment keep_rng_state; return the file of its weights, and how long it took."""
    folder = work / f"keep_rng_state-{len(list(work.glob('keep_rng_state-*')))}"
    folder.mkdir()
    file = save_experiment(folder / "experiment.toml", json.loads(fields))
    command = [sys.executable, "-m", "tenfold", "train", str(file), "--quiet"]
    began = time.monotonic()
    subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": SOURCES}, check=True, capture_output=True, timeout=600
    )
    (weights,) = folder.glob("runs/1-*/model.pt")
    return weights, time.monotonic() - began


def _run_here(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    """In a fork: run the command line, and leave."""
    import traceback

    code: Any = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", errors="replace"), os.fdopen(2, "w", errors="replace")
        sys.argv = ["tenfold", *arguments]
        sys.path.insert(0, str(folder))
        from tenfold.cli import main

        main()
        code = 0
    except SystemExit as error:
        code = 0 if error.code is None else error.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_for(child: int, limit: float) -> int | None:
    until = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for process in (*psutil.Process(child).children(recursive=True), psutil.Process(child)):
                process.send_signal(signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)
